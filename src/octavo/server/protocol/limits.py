"""How much one request may ask for: each field is an option of the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from octavo.errors import ConfigError, RequestError

_PARTS_OF_MESSAGE = 4
"""On average, of the most that a conversation may have: a part takes half the time of a message."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request's body, beyond those of the model and of `SamplingParams`. Raises: `ConfigError`."""

    max_prompts: int = 1_024
    """Prompts in one request."""
    max_completions: int = 16_384
    """Completions of one request: n times its prompts."""
    max_stop_strings: int = 4
    """Stop strings of a request, Anthropic's `stop_sequences` too; OpenAI's limit. Each is matched against every new
    character."""
    max_stop_chars: int = 65_536
    """Characters of all stop strings of a request together."""
    max_token_id_list: int = 4_096
    """Entries of `stop_token_ids`, and of `logit_bias`."""
    max_bad_words: int = 256
    """Words in `bad_words`; each is compared with the end of the output at every step."""
    max_messages: int = 8_192
    """Messages of a conversation; parts and tool calls in them may be four times as many."""
    max_tools: int = 128
    """Tools of a request; OpenAI's limit."""
    max_id_chars: int = 256
    """Characters of a request id that the client chose."""
    allow_request_chat_template: bool = False
    """Let a request bring its own `chat_template`: a program, which then runs in a sandbox with a time limit."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value < 0:
                raise ConfigError(f"{entry.name} must be 0 or more, got {value!r}.")


def check_parts(name: str, lists: Iterable[object], max_messages: int) -> None:
    """Raise `RequestError` if the parts that messages are made of are more than the server grants; texts are none."""
    count = sum(len(entry) for entry in lists if isinstance(entry, list))
    check_limit(name, count, _PARTS_OF_MESSAGE * max_messages, "parts and tool calls")


def check_limit(name: str, count: int, limit: int, unit: str) -> None:
    """Raise `RequestError` if a field asks for more than the server grants."""
    if count > limit:
        raise RequestError(f"{name} asks for {count} {unit}; this server takes at most {limit}.", parameter=name)
