"""What answers share: what is asked of each, their head, the count of tokens, and the frames of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
from msgspec import UNSET, Struct, UnsetType

from octavo.server.protocol.responses import PromptTokensDetails, Usage

if TYPE_CHECKING:
    from octavo.outputs import RequestOutput
    from octavo.server.protocol.bodies import GenerationBody
    from octavo.server.protocol.errors import ApiError

DONE = b"data: [DONE]\n\n"
"""The last frame of every stream."""


class WholeAnswer(Protocol):
    """Writes the answer to one request, when it has ended."""

    def body(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Return the JSON for the finished outputs of all prompts, in their order."""
        ...


class Answer(WholeAnswer, Protocol):
    """Writes the answer to one request: `body` once, or `chunk` for every output and then `end` or `failure`."""

    def chunk(self, prompt_index: int, output: RequestOutput) -> bytes:
        """Return the events for what is new of one prompt's completions; none, if nothing can be shown yet."""
        ...

    def end(self) -> bytes:
        """Return the events after the last completion has ended."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """Return the events that end a stream which has failed after it began."""
        ...


@runtime_checkable
class PingedAnswer(Answer, Protocol):
    """One of an API that has an event which says nothing."""

    def ping(self) -> bytes:
        """Return that event; before the first output, behind those that begin the stream."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every body and chunk of one answer begins with."""

    id: str
    """Beginning with "cmpl-", "chatcmpl-" or "embd-"."""
    created: int
    """Seconds since the epoch."""
    model: str
    """The served name that the request used."""
    fingerprint: str | None = None
    """What the answer's bits depend on besides the request."""
    forces_usage: bool = False
    """Whether streams end with the usage though the client did not ask."""
    tells_cached_tokens: bool = True
    """Whether the usage says how much of the prompt was found in the prefix cache."""

    @property
    def system_fingerprint(self) -> str | UnsetType:
        """As OpenAI calls it."""
        return UNSET if self.fingerprint is None else self.fingerprint


class UsageCounter:
    """Counts the tokens of one answer as its outputs come: of each prompt once, of each completion all.

    Args:
        body: says whether a stream is to tell them.
    """

    def __init__(self, body: GenerationBody, head: AnswerHead) -> None:
        options = body.stream_options
        self._tells_cached_tokens = head.tells_cached_tokens
        self.is_told = head.forces_usage or (options is not None and bool(options.include_usage))
        self._is_continuous = options is not None and bool(options.include_usage and options.continuous_usage_stats)
        self._prompt_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._completion_tokens = 0

    def add(self, prompt_index: int, output: RequestOutput, *, counts_completion: bool = True) -> None:
        """Take an output, whose completions hold what is new."""
        self._prompt_tokens[prompt_index] = len(output.prompt_token_ids or ())
        self._cached_tokens[prompt_index] = output.num_cached_tokens or 0
        if counts_completion:
            self._completion_tokens += sum(len(completion.token_ids) for completion in output.outputs)

    def usage(self) -> Usage:
        """Return the tokens so far."""
        prompt, completion = sum(self._prompt_tokens.values()), self._completion_tokens
        usage = Usage(prompt, completion, prompt + completion)
        if self._tells_cached_tokens:
            usage.prompt_tokens_details = PromptTokensDetails(sum(self._cached_tokens.values()))
        return usage

    def of_chunk(self) -> Usage | UnsetType | None:
        """Return what a chunk with choices says: null, if a later chunk tells; nothing, if none does."""
        if self._is_continuous:
            return self.usage()
        return None if self.is_told else UNSET


def frame(chunk: Struct) -> bytes:
    """Return one server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def error_frames(error: ApiError) -> bytes:
    """Return the end of a stream that has failed after it began."""
    return b"data: " + error.body() + b"\n\n" + DONE
