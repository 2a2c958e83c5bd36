"""What requests are sampled with, the same for all commands that generate: flags, what they default to, parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from octavo.cli.engine_flags import named_by_flags
from octavo.frontend.generation_defaults import RECOMMENDED
from octavo.sampling_params import SamplingParams
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.llm import LLM

Command = TypeVar("Command", bound=Callable[..., Any])

_FLAGS: dict[str, tuple[type, str]] = {
    "n": (int, "Completions of each prompt."),
    "max_tokens": (int, "Tokens of each answer."),
    "min_tokens": (int, "Do not end before this many tokens."),
    "temperature": (float, "0 is greedy."),
    "top_p": (float, "Share of probability to sample from."),
    "top_k": (int, "Number of tokens to sample from; 0 is all."),
    "min_p": (float, "Least probability relative to the largest."),
    "seed": (int, "Seed of each request.  [default: made of --seed, the engine's]"),
    "presence_penalty": (float, "Above 0 discourages tokens that the output has."),
    "frequency_penalty": (float, "The same, once more for each time."),
    "repetition_penalty": (float, "Above 1 discourages tokens of prompt and output."),
    "logprobs": (int, "Logprobs per token, in the JSON."),
    "stop": (list, "Text that ends the output; may be given several times."),
    "stop_token_ids": (list, "Id of a token that ends the output; may be given several times."),
    "bad_words": (list, "Text that must not appear; may be given several times."),
    "ignore_eos": (bool, "Go on after the end-of-text token."),
    "skip_special_tokens": (bool, "Leave them out of the text."),
    "include_stop_str_in_output": (bool, "Keep what ended the output."),
}
"""By the parameter's name; what is a list has one entry each time the flag is given."""
COMMAND_MAX_TOKENS: dict[str, int | None] = {"generate": 256, "explain": 8, "chat": None}
"""Tokens of an answer where --max-tokens is not given, by command; None is what the context leaves. A command line is
for reading answers, which the API's 16 cut short; of an explanation every one is told."""
_NAMES = {"seed": "sampling-seed", "stop_token_ids": "stop-token-id", "bad_words": "bad-word"}
"""Flags that are not called as the parameter is."""
_PREFIX = "sampling_"
_DEFAULTS = {entry.name: entry.default for entry in fields(SamplingParams)}


def sampling_flags(
    *, max_tokens: int | None, only: Collection[str] = tuple(_FLAGS), without: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Return what adds the flags to a command; None is a flag that was not given.

    Args:
        max_tokens: the command's default; None is what the context leaves.
        only: names of parameters.
    """

    def add(command: Command) -> Command:
        for name in reversed(_FLAGS):
            if name in only and name not in without:
                command = _option(name, max_tokens)(command)
        return command

    return add


def sampling_params(llm: LLM, flags: Mapping[str, Any], *, max_tokens: int | None) -> SamplingParams:
    """Return the model's defaults with what was given on the command line.

    More tokens than the model has room for are no error, as in the API; here it is said.
    """
    params = llm.get_default_sampling_params()
    params.max_tokens = max_tokens
    for name in _FLAGS:
        value = flags.get(_PREFIX + name)
        if value not in (None, ()):
            setattr(params, name, list(value) if isinstance(value, tuple) else value)
    params.verify()
    limit, asked = llm.llm_engine.max_model_len, flags[_PREFIX + "max_tokens"]
    if asked is not None and asked >= limit:
        room = f"prompt and answer together have {counted(limit, 'token')}"
        way_out = named_by_flags(llm.llm_engine.way_to_more_length)
        click.echo(f"Note: --max-tokens {asked} is more than there is room for: {room}. For more, {way_out}.", err=True)
    return params


def _option(name: str, max_tokens: int | None) -> Callable[[Command], Command]:
    kind, text = _FLAGS[name]
    flag, default = "--" + _NAMES.get(name, name.replace("_", "-")), _default(name, max_tokens)
    text += f"  [default: {default}]" if default is not None else ""
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", _PREFIX + name, default=None, help=text)
    if kind is list:
        entries = int if name == "stop_token_ids" else str
        return click.option(flag, _PREFIX + name, type=entries, multiple=True, help=text)
    return click.option(flag, _PREFIX + name, type=kind, help=text)


def _default(name: str, max_tokens: int | None) -> str | None:
    """Return what a flag's help says of its default."""
    if name == "max_tokens":
        return "what the context leaves" if max_tokens is None else str(max_tokens)
    default = _DEFAULTS[name]
    if default is None:
        return None
    return f"the model's, else {default}" if name in RECOMMENDED.values() else str(default)
