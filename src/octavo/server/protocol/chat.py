"""The answer of /v1/chat/completions: an output of the engine to one body, or to the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from octavo.server.parsers.contract import ArgumentsPart, CallPart, ReasoningPart, TextPart, parse_whole
from octavo.server.protocol.answers import DONE, UsageCounter, error_frames, frame
from octavo.server.protocol.logprobs import chat_logprobs, prompt_logprob_entries
from octavo.server.protocol.responses import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    PromptLogprobEntries,
    ToolCall,
    ToolCallDelta,
)

if TYPE_CHECKING:
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.server.parsers.contract import OutputParser, ParsedMessage, Part
    from octavo.server.parsers.plan import MakeParser
    from octavo.server.protocol.answers import AnswerHead
    from octavo.server.protocol.bodies import ChatBody
    from octavo.server.protocol.errors import ApiError
    from octavo.server.protocol.logprobs import TokenTexts


class ChatAnswer:
    """Writes one answer.

    Args:
        texts: of the model's tokens.
        make_parser: makes the reader of each completion's text.
    """

    def __init__(self, body: ChatBody, head: AnswerHead, texts: TokenTexts, make_parser: MakeParser) -> None:
        self._request = body
        self._head = head
        self._texts = texts
        self._usage = UsageCounter(body, head)
        self._echo = _last_answer(body) if body.echo else ""
        self._make_parser = make_parser
        self._streams: dict[int, _Stream] = {}
        """Of the choices whose role was told."""
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
            stream = self._streams.get(completion.index)
            if stream is None:
                stream = self._streams[completion.index] = _Stream(self._make_parser(completion.index))
                frames.append(self._role_event(output, completion.index))
            delta = stream.read(completion)
            shows = delta is not None or completion.finish_reason is not None
            if shows or completion.logprobs or self._request.return_token_ids:
                frames.append(frame(self._chunk(self._new_of(completion, delta, stream.has_calls))))
        return b"".join(frames)

    def end(self) -> bytes:
        """Return the events after the last choice has ended."""
        if not self._usage.is_told:
            return DONE
        last = self._chunk(None)
        last.usage = self._usage.usage()
        return frame(last) + DONE

    def failure(self, error: ApiError) -> bytes:
        """Return the events that end a stream which has failed after it began."""
        return error_frames(error)

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        message = parse_whole(self._make_parser(completion.index), completion.text)
        return ChatChoice(
            index=completion.index,
            message=chat_message(message, self._echo),
            logprobs=self._logprobs(completion),
            finish_reason=self._finish_reason(completion, has_calls=bool(message.calls)),
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

    def _new_of(self, completion: CompletionOutput, delta: ChatDelta | None, has_calls: bool) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=completion.index,
            delta=ChatDelta(content="") if delta is None else delta,
            logprobs=self._logprobs(completion),
            finish_reason=self._finish_reason(completion, has_calls=has_calls),
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

    def _finish_reason(self, completion: CompletionOutput, *, has_calls: bool) -> str | None:
        """Return OpenAI's word: a call that the model chose ends with another than one that the request has named."""
        choice = self._request.tool_choice
        is_named = isinstance(choice, dict) and choice.get("type") == "function"
        is_call = has_calls and completion.finish_reason == "stop" and not is_named
        return "tool_calls" if is_call else completion.finish_reason

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


class _Stream:
    """What was told of one choice."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self.has_calls = False

    def read(self, completion: CompletionOutput) -> ChatDelta | None:
        """Return what is new; None if nothing can be shown yet."""
        parts = self._parser.push(completion.text)
        if completion.finish_reason is not None:
            parts = parts + self._parser.finish()
        if not parts:
            return None
        delta = chat_delta(parts)
        self.has_calls = self.has_calls or delta.tool_calls is not UNSET
        return delta


def chat_message(message: ParsedMessage, echo: str) -> ChatMessage:
    """Return what a completion comes to; its content is null where there is something else instead."""
    content = echo + message.content
    reasoning = message.reasoning or UNSET
    calls = [
        ToolCall(id=call.call_id, function=CalledFunction(name=call.name, arguments=call.arguments))
        for call in message.calls
    ]
    return ChatMessage(
        content=content if content or not (calls or message.reasoning) else None,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=calls or UNSET,
    )


def chat_delta(parts: Sequence[Part]) -> ChatDelta:
    """Return what parts add to a message."""
    content = "".join(part.text for part in parts if isinstance(part, TextPart))
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart)) or UNSET
    calls: dict[int, ToolCallDelta] = {}
    for part in parts:
        if isinstance(part, CallPart):
            function = CalledFunction(name=part.name)
            calls[part.index] = ToolCallDelta(index=part.index, id=part.call_id, type="function", function=function)
        elif isinstance(part, ArgumentsPart):
            call = calls.setdefault(part.index, ToolCallDelta(index=part.index, function=CalledFunction()))
            call.function.arguments += part.text
    return ChatDelta(
        content=content or UNSET,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=list(calls.values()) or UNSET,
    )


def _last_answer(body: ChatBody) -> str:
    """Return the text of a last message by the assistant, which `echo` puts before what continues it."""
    last = body.messages[-1]
    content = last.get("content")
    if last.get("role") != "assistant" or content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, dict))
