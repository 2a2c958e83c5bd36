"""Where the prompts of a command come from, and how they become conversations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from octavo.observe.patience import told_if_slow

if TYPE_CHECKING:
    from octavo.llm import LLM

Command = TypeVar("Command", bound=Callable[..., Any])

_WAITING = "waiting for the prompt, which is all of stdin up to its end; -p gives one instead"
_OPTIONS = (
    click.option(
        "-p", "--prompt", "prompts", multiple=True, help="A prompt; may be given several times.  [default: stdin]"
    ),
    click.option(
        "--prompt-file", type=click.File("r", encoding="utf-8"), help="One prompt a line, in UTF-8; - reads stdin."
    ),
    click.option("--chat/--no-chat", default=False, help="Treat each prompt as a user's message.  [default: no-chat]"),
    click.option("--system", help="System message before each prompt; only with --chat."),
)


def prompt_flags(command: Command) -> Command:
    """Add the flags that give prompts: `prompts`, `prompt_file`, `chat`, `system`."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


def check_system(system: str | None, chat: bool) -> None:
    """Raise a usage error for a system message that has no conversation."""
    if system is not None and not chat:
        raise click.UsageError("--system needs --chat: a text alone has no system message")


def read_prompts(prompts: Sequence[str], prompt_file: IO[str] | None) -> list[str]:
    """Return all prompts that were given; where there is none, all that is piped in as one.

    With a prompt stdin is not read: it may be anything that this process has inherited.
    """
    try:
        texts = [*prompts, *(line.rstrip("\n") for line in prompt_file or ())]
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the prompt file is not UTF-8 text: {error.reason}") from error
    if not texts and prompt_file is not None:
        raise click.UsageError("the prompt file is empty")
    return texts or [_piped()]


def _piped() -> str:
    """Return what is piped in, without the line breaks at its end, as a shell's `$(...)` does."""
    way_out = "give at least one prompt: with -p, --prompt or --prompt-file, or pipe it in"
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(way_out)
    try:
        with told_if_slow(_WAITING), click.open_file("-", encoding="utf-8") as stdin:
            text = str(stdin.read()).rstrip("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin is not UTF-8 text: {error.reason}") from error
    if not text:
        raise click.UsageError(f"stdin is empty: {way_out}")
    return text


def rendered(llm: LLM, text: str, chat: bool, system: str | None) -> Any:
    """Return a prompt as `LLM.generate` takes it: as it is, or as a conversation that the chat template writes."""
    if not chat:
        return text
    messages = [{"role": "system", "content": system}] if system else []
    tokenizer = llm.get_tokenizer()
    written = tokenizer.apply_chat_template(
        [*messages, {"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return {"prompt": written, "prompt_token_ids": tokenizer.encode(written, add_special_tokens=False)}
