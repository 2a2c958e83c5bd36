"""The answer of /v1/completions: outputs of the engine to one body, or to the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from octavo.server.protocol.answers import DONE, UsageCounter, error_frames, frame
from octavo.server.protocol.logprobs import completion_logprobs, prompt_logprob_entries, token_text
from octavo.server.protocol.responses import CompletionChoice, CompletionLogprobs, CompletionResponse, Usage
from octavo.server.protocol.sampling import scores_only

if TYPE_CHECKING:
    from octavo.outputs import CompletionOutput, Logprob, RequestOutput
    from octavo.server.protocol.answers import AnswerHead
    from octavo.server.protocol.bodies import CompletionBody
    from octavo.server.protocol.errors import ApiError
    from octavo.server.protocol.logprobs import TokenTexts


class CompletionAnswer:
    """Writes one answer. Choice `p * n + i` is completion i of prompt p.

    Args:
        texts: of the model's tokens.
    """

    def __init__(self, body: CompletionBody, head: AnswerHead, texts: TokenTexts) -> None:
        self._request = body
        self._head = head
        self._texts = texts
        self._n = body.n or 1
        self._generates = not scores_only(body)
        self._usage = UsageCounter(body, head)
        self._offsets: dict[int, int] = {}
        """Of each choice that has begun: characters of its tokens so far, those whose text is held back among them."""

    def body(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Return the body for the finished outputs of all prompts, in their order."""
        choices = []
        for prompt_index, output in enumerate(outputs):
            self._usage.add(prompt_index, output, counts_completion=self._generates)
            choices += [self._choice(prompt_index, output, completion) for completion in output.outputs]
        return msgspec.json.encode(self._response(choices, self._usage.usage()))

    def chunk(self, prompt_index: int, output: RequestOutput) -> bytes:
        """Return the events for what is new of one prompt's completions; none, if nothing can be shown yet."""
        self._usage.add(prompt_index, output, counts_completion=self._generates)
        frames = []
        for completion in output.outputs:
            is_first = prompt_index * self._n + completion.index not in self._offsets
            shows = completion.text or completion.finish_reason is not None
            if shows or completion.logprobs or self._request.return_token_ids or (is_first and self._request.echo):
                choice = self._choice(prompt_index, output, completion)
                frames.append(frame(self._response([choice], self._usage.of_chunk())))
        return b"".join(frames)

    def end(self) -> bytes:
        """Return the events after the last completion has ended."""
        return (frame(self._response([], self._usage.usage())) if self._usage.is_told else b"") + DONE

    def failure(self, error: ApiError) -> bytes:
        """Return the events that end a stream which has failed after it began."""
        return error_frames(error)

    def _response(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> CompletionResponse:
        head = self._head
        return CompletionResponse(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=usage,
            system_fingerprint=head.system_fingerprint,
        )

    def _choice(self, prompt_index: int, output: RequestOutput, completion: CompletionOutput) -> CompletionChoice:
        body, index = self._request, prompt_index * self._n + completion.index
        is_first = index not in self._offsets
        text = completion.text if self._generates else ""
        token_ids = list(completion.token_ids) if self._generates else []
        if is_first and body.echo:
            text = self._prompt_text(output) + text
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=self._logprobs(index, output, completion, is_first),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=token_ids if body.return_token_ids else UNSET,
        )
        if is_first and body.return_token_ids:
            choice.prompt_token_ids = output.prompt_token_ids or []
        if is_first and body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprob_entries(output.prompt_logprobs)
        return choice

    def _prompt_text(self, output: RequestOutput) -> str:
        return output.prompt if output.prompt is not None else self._texts.decode(output.prompt_token_ids or [])

    def _logprobs(
        self, index: int, output: RequestOutput, completion: CompletionOutput, is_first: bool
    ) -> CompletionLogprobs | None:
        offset = self._offsets.setdefault(index, 0)
        if self._request.logprobs is None:
            return None
        token_ids: list[int] = []
        positions: list[dict[int, Logprob] | None] = []
        if is_first and self._request.echo:
            token_ids += output.prompt_token_ids or []
            positions += output.prompt_logprobs or []
        if self._generates:
            token_ids += completion.token_ids
            positions += completion.logprobs or []
        self._offsets[index] += sum(len(token_text(self._texts, token_id)) for token_id in token_ids)
        return completion_logprobs(
            token_ids, positions, self._texts, offset=offset, as_ids=bool(self._request.return_tokens_as_token_ids)
        )
