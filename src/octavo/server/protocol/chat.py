"""The answer of /v1/chat/completions: an output of the engine to one body, or to the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from octavo.server.protocol.answers import DONE, UsageCounter, frame
from octavo.server.protocol.logprobs import chat_logprobs, prompt_logprob_entries
from octavo.server.protocol.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    PromptLogprobEntries,
)

if TYPE_CHECKING:
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.server.protocol.answers import AnswerHead
    from octavo.server.protocol.bodies import ChatBody
    from octavo.server.protocol.logprobs import TokenTexts


class ChatAnswer:
    """Writes one answer.

    Args:
        texts: of the model's tokens.
    """

    def __init__(self, body: ChatBody, head: AnswerHead, texts: TokenTexts) -> None:
        self._request = body
        self._head = head
        self._texts = texts
        self._usage = UsageCounter(body, head)
        self._echo = _last_answer(body) if body.echo else ""
        self._begun: set[int] = set()
        """Choices whose role was told."""
        self._prompt_told = False

    def body(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Return the body for the finished output of the one prompt."""
        (output,) = outputs
        self._usage.add(0, output)
        head = self._head
        response = ChatResponse(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[self._choice(completion) for completion in output.outputs],
            usage=self._usage.usage(),
            system_fingerprint=head.system_fingerprint,
            prompt_logprobs=self._prompt_logprobs(output),
            prompt_token_ids=self._prompt_token_ids(output),
        )
        return msgspec.json.encode(response)

    def chunk(self, prompt_index: int, output: RequestOutput) -> bytes:
        """Return the events for what is new; none, if nothing can be shown yet."""
        self._usage.add(prompt_index, output)
        frames = []
        for completion in output.outputs:
            if completion.index not in self._begun:
                self._begun.add(completion.index)
                frames.append(self._role_event(output, completion.index))
            shows = completion.text or completion.finish_reason is not None
            if shows or completion.logprobs or self._request.return_token_ids:
                frames.append(frame(self._chunk(self._new_of(completion))))
        return b"".join(frames)

    def end(self) -> bytes:
        """Return the events after the last choice has ended."""
        if not self._usage.is_told:
            return DONE
        last = self._chunk(None)
        last.usage = self._usage.usage()
        return frame(last) + DONE

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=completion.index,
            message=ChatMessage(content=self._echo + completion.text),
            logprobs=self._logprobs(completion),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=list(completion.token_ids) if self._request.return_token_ids else UNSET,
        )

    def _role_event(self, output: RequestOutput, index: int) -> bytes:
        chunk = self._chunk(ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=self._echo)))
        if not self._prompt_told:
            self._prompt_told = True
            chunk.prompt_logprobs = self._prompt_logprobs(output)
            chunk.prompt_token_ids = self._prompt_token_ids(output)
        return frame(chunk)

    def _new_of(self, completion: CompletionOutput) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=completion.index,
            delta=ChatDelta(content=completion.text),
            logprobs=self._logprobs(completion),
            finish_reason=completion.finish_reason,
            stop_reason=UNSET if completion.stop_reason is None else completion.stop_reason,
            token_ids=list(completion.token_ids) if self._request.return_token_ids else UNSET,
        )

    def _chunk(self, choice: ChatChunkChoice | None) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[] if choice is None else [choice],
            usage=self._usage.of_chunk(),
            system_fingerprint=head.system_fingerprint,
        )

    def _logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if not self._request.logprobs or completion.logprobs is None:
            return None
        return chat_logprobs(
            completion.token_ids,
            completion.logprobs,
            self._texts,
            num_top=self._request.top_logprobs or 0,
            as_ids=bool(self._request.return_tokens_as_token_ids),
        )

    def _prompt_logprobs(self, output: RequestOutput) -> PromptLogprobEntries | UnsetType:
        if self._request.prompt_logprobs is None or output.prompt_logprobs is None:
            return UNSET
        return prompt_logprob_entries(output.prompt_logprobs)

    def _prompt_token_ids(self, output: RequestOutput) -> list[int] | UnsetType:
        return output.prompt_token_ids or [] if self._request.return_token_ids else UNSET


def _last_answer(body: ChatBody) -> str:
    """Return the text of a last message by the assistant, which `echo` puts before what continues it."""
    last = body.messages[-1]
    content = last.get("content")
    if last.get("role") != "assistant" or content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, dict))
