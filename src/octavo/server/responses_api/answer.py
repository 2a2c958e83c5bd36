"""The answer of /v1/responses: an output of the engine to one body, or to the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from octavo.server.protocol.blocks import BlockReader
from octavo.server.protocol.logprobs import chat_logprobs
from octavo.server.responses_api import objects
from octavo.server.responses_api.items import ItemWriter

if TYPE_CHECKING:
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.server.parsers.contract import OutputParser
    from octavo.server.protocol.errors import ApiError
    from octavo.server.protocol.logprobs import TokenTexts
    from octavo.server.protocol.responses import TokenLogprob
    from octavo.server.responses_api.objects import Event, ResponseObject


class ResponseAnswer:
    """Writes one answer. The body is what the last event of the stream holds.

    Args:
        response: as it is before anything is generated.
        texts: of the model's tokens.
        num_top: most probable tokens to list with each token; None for no logprobs at all.
        tells_cached_tokens: see `AnswerHead`.
    """

    def __init__(
        self,
        response: ResponseObject,
        parser: OutputParser,
        texts: TokenTexts,
        *,
        num_top: int | None,
        tells_cached_tokens: bool,
    ) -> None:
        self._response = response
        self._texts = texts
        self._num_top = num_top
        self._tells_cached_tokens = tells_cached_tokens
        self._reader = BlockReader(parser)
        self._items = ItemWriter(response.id.partition("_")[2])
        self._token_ids: list[int] = []
        self._prompt_tokens = self._cached_tokens = 0
        self._logprobs: list[TokenLogprob] = []
        self._untold_logprobs: list[TokenLogprob] = []
        self._was_cut = False
        self._sequence_number = 0

    def body(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Return the body for the finished output of the one prompt."""
        (output,) = outputs
        for _ in self._events(output):
            pass
        return msgspec.json.encode(self._finished())

    def chunk(self, prompt_index: int, output: RequestOutput) -> bytes:
        """Return the events for what is new; with the first, those that begin the stream."""
        del prompt_index
        frames = [] if self._sequence_number else self._begin()
        return b"".join(frames + [self._frame(event) for event in self._events(output)])

    def end(self) -> bytes:
        """Return the event with the whole answer."""
        response = self._finished()
        kind = objects.ResponseIncomplete if self._was_cut else objects.ResponseCompleted
        return self._frame(kind(response=response))

    def failure(self, error: ApiError) -> bytes:
        """Return the event that ends a stream which has failed after it began."""
        self._response.status = "failed"
        self._response.error = objects.ResponseFailure("server_error", error.text)
        self._response.output = self._items.items
        return self._frame(objects.ResponseFailed(response=self._response))

    def _begin(self) -> list[bytes]:
        events = objects.ResponseCreated(response=self._response), objects.ResponseInProgress(response=self._response)
        return [self._frame(event) for event in events]

    def _events(self, output: RequestOutput) -> Iterator[Event]:
        self._prompt_tokens = len(output.prompt_token_ids or ())
        self._cached_tokens = (output.num_cached_tokens or 0) if self._tells_cached_tokens else 0
        for completion in output.outputs:
            self._token_ids += completion.token_ids
            self._add_logprobs(completion)
            changes = list(self._reader.push(completion.text))
            if completion.finish_reason is not None:
                self._was_cut = completion.finish_reason != "stop"
                changes += self._reader.finish()
                if not self._reader.blocks:
                    changes += [*self._reader.open("text"), *self._reader.close()]
            for place, change in enumerate(changes, 1):
                is_cut = self._was_cut and place == len(changes)
                status: objects.Status = "incomplete" if is_cut else "completed"
                yield from self._items.events(change, status, self._untold_logprobs, self._logprobs)

    def _add_logprobs(self, completion: CompletionOutput) -> None:
        if self._num_top is None or completion.logprobs is None:
            return
        new = chat_logprobs(
            completion.token_ids, completion.logprobs, self._texts, num_top=self._num_top, as_ids=False
        ).content
        self._logprobs += new
        self._untold_logprobs += new

    def _finished(self) -> ResponseObject:
        response, num_tokens = self._response, len(self._token_ids)
        response.status = "incomplete" if self._was_cut else "completed"
        response.incomplete_details = objects.IncompleteDetails() if self._was_cut else None
        response.output = self._items.items
        response.usage = objects.ResponseUsage(
            self._prompt_tokens,
            objects.InputTokensDetails(self._cached_tokens),
            num_tokens,
            objects.OutputTokensDetails(self._num_reasoning_tokens()),
            self._prompt_tokens + num_tokens,
        )
        return response

    def _num_reasoning_tokens(self) -> int:
        """Count the tokens until the end of the last thought, which stands in the output as it is."""
        thought = next((block.text for block in reversed(self._reader.blocks) if block.kind == "reasoning"), "")
        if not thought:
            return 0
        ends: list[int] = []
        written = bytearray()
        for token_id in self._token_ids:
            written += self._texts.id_to_bytes(token_id)
            ends.append(len(written))
        end = written.find(thought.encode()) + len(thought.encode())
        return sum(1 for token_end in ends if token_end <= end)

    def _frame(self, event: Event) -> bytes:
        event.sequence_number = self._sequence_number
        self._sequence_number += 1
        kind = str(type(event).__struct_config__.tag)
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
