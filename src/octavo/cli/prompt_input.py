"""Where the prompts of a command come from, and how they become conversations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from octavo.errors import ConfigError
from octavo.observe.patience import told_if_slow

if TYPE_CHECKING:
    from octavo.llm import LLM

Command = TypeVar("Command", bound=Callable[..., Any])

_WAITING = "waiting for the prompt, which is all of stdin up to its end; -p gives one instead"
chat_template_flag = click.option(
    "--chat-template", help="File with a Jinja chat template, or the template itself, instead of the model's."
)
_OPTIONS = (
    click.option(
        "-p", "--prompt", "prompts", multiple=True, help="A prompt; may be given several times.  [default: stdin]"
    ),
    click.option(
        "--prompt-file", type=click.File("r", encoding="utf-8"), help="One prompt a line, in UTF-8; - reads stdin."
    ),
    click.option("--chat/--no-chat", default=False, help="Treat each prompt as a user's message.  [default: no-chat]"),
    click.option("--system", help="System message before each prompt; only with --chat."),
    chat_template_flag,
)


def prompt_flags(command: Command) -> Command:
    """Add the flags that give prompts: `prompts`, `prompt_file`, and those of `PromptForm`."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


@dataclass(frozen=True, slots=True)
class PromptForm:
    """How a text becomes a prompt: as it is, or as a conversation."""

    chat: bool
    system: str | None
    template: str | None
    """Of conversations, instead of the model's."""

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> PromptForm:
        """Return what a command's parameters say; a usage error for what a text alone does not have."""
        for flag, name in (("--system", "system message"), ("--chat-template", "chat template")):
            if flags[flag[2:].replace("-", "_")] is not None and not flags["chat"]:
                raise click.UsageError(f"{flag} needs --chat: a text alone has no {name}")
        return cls(flags["chat"], flags["system"], given_template(flags["chat_template"]))

    def rendered(self, llm: LLM, text: str) -> Any:
        """Return a prompt as `LLM.generate` takes it: a conversation as the chat template writes it."""
        if not self.chat:
            return text
        check_can_chat(llm, self.template)
        messages = [{"role": "system", "content": self.system}] if self.system else []
        tokenizer = llm.get_tokenizer()
        written = tokenizer.apply_chat_template(
            [*messages, {"role": "user", "content": text}],
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
        )
        return {"prompt": written, "prompt_token_ids": tokenizer.encode(written, add_special_tokens=False)}


def given_template(given: str | None) -> str | None:
    """Return the chat template of a command line. Raises: `ConfigError` if it is none."""
    from octavo.server.chosen_files import checked_template

    return None if given is None else checked_template(given)


def check_can_chat(llm: LLM, template: str | None) -> None:
    """Raise `ConfigError` where there is no chat template, neither a given one nor the model's."""
    if template is None and llm.get_tokenizer().chat_template is None:
        raise ConfigError(
            "the model has no chat template, so it is not made for conversations: give one with --chat-template, let "
            "`octavo generate` continue a text without --chat, or take a model that can chat, such as smollm2-135m"
        )


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
