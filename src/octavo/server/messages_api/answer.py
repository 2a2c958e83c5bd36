"""The answer of /v1/messages: an output of the engine to one body, or to the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from octavo.server.messages_api import objects
from octavo.server.messages_api.cut_json import read_cut_object
from octavo.server.messages_api.errors import messages_error
from octavo.server.messages_api.objects import MessageObject, MessageUsage, TextBlock, ThinkingBlock, ToolUseBlock
from octavo.server.protocol.blocks import BlockReader

if TYPE_CHECKING:
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.server.messages_api.objects import AnswerBlock
    from octavo.server.parsers.contract import OutputParser
    from octavo.server.protocol.blocks import Block, Change
    from octavo.server.protocol.errors import ApiError


class MessagesAnswer:
    """Writes one answer.

    Args:
        message_id: with its prefix.
        model: the served name that the request used.
        tells_cached_tokens: see `AnswerHead`.
    """

    def __init__(self, message_id: str, model: str, parser: OutputParser, *, tells_cached_tokens: bool) -> None:
        self._message = MessageObject(id=message_id, model=model, usage=MessageUsage(input_tokens=0, output_tokens=0))
        self._tells_cached_tokens = tells_cached_tokens
        self._reader = BlockReader(parser)
        self._has_begun = False

    def body(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Return the body for the finished output of the one prompt."""
        (output,) = outputs
        self._count(output)
        for _ in self._changes(output):
            pass
        self._message.content = [_block(block) for block in self._reader.blocks]
        return msgspec.json.encode(self._message)

    def chunk(self, prompt_index: int, output: RequestOutput) -> bytes:
        """Return the events for what is new; with the first, those that begin the stream."""
        del prompt_index
        begun = b""
        if not self._has_begun:
            self._count_prompt(output)
            begun = self.ping()
        self._count(output)
        return begun + b"".join(_frame(_event(change)) for change in self._changes(output))

    def ping(self) -> bytes:
        """Return the event that says nothing; in the beginning, behind the one that begins the stream."""
        begun = b"" if self._has_begun else _frame(objects.MessageStart(self._message))
        self._has_begun = True
        return begun + _frame(objects.Ping())

    def end(self) -> bytes:
        """Return the events after the last block."""
        message = self._message
        stop = objects.StopDelta(message.stop_reason, message.stop_sequence)
        return _frame(objects.MessageDelta(stop, message.usage)) + _frame(objects.MessageStop())

    def failure(self, error: ApiError) -> bytes:
        """Return the event that ends a stream which has failed after it began."""
        return _frame(messages_error(error))

    def _count_prompt(self, output: RequestOutput) -> None:
        usage = self._message.usage
        num_cached = (output.num_cached_tokens or 0) if self._tells_cached_tokens else 0
        usage.cache_read_input_tokens = num_cached
        usage.input_tokens = len(output.prompt_token_ids or ()) - num_cached

    def _count(self, output: RequestOutput) -> None:
        self._count_prompt(output)
        self._message.usage.output_tokens += sum(len(completion.token_ids) for completion in output.outputs)

    def _changes(self, output: RequestOutput) -> Iterator[Change]:
        for completion in output.outputs:
            yield from self._reader.push(completion.text)
            if completion.finish_reason is not None:
                yield from self._reader.finish()
                self._stop(completion)

    def _stop(self, completion: CompletionOutput) -> None:
        message = self._message
        if completion.finish_reason == "length":
            message.stop_reason = "max_tokens"
        elif self._reader.has_calls:
            message.stop_reason = "tool_use"
        elif isinstance(completion.stop_reason, str):
            message.stop_reason, message.stop_sequence = "stop_sequence", completion.stop_reason
        else:
            message.stop_reason = "end_turn"


def _block(block: Block) -> AnswerBlock:
    if block.kind == "text":
        return TextBlock(text=block.text)
    if block.kind == "reasoning":
        return ThinkingBlock(thinking=block.text)
    return ToolUseBlock(id=block.call_id, name=block.name, input=read_cut_object(block.text))


def _event(change: Change) -> Struct:
    block = change.block
    if change.kind == "opened":
        return objects.BlockStart(block.index, _block_at_start(block))
    if change.kind == "closed":
        return objects.BlockStop(block.index)
    return objects.BlockDelta(block.index, _delta(block, change.text))


def _block_at_start(block: Block) -> AnswerBlock:
    if block.kind == "call":
        return ToolUseBlock(id=block.call_id, name=block.name)
    return TextBlock() if block.kind == "text" else ThinkingBlock()


def _delta(block: Block, text: str) -> objects.TextBlockDelta | objects.ThinkingBlockDelta | objects.InputJsonDelta:
    if block.kind == "text":
        return objects.TextBlockDelta(text)
    return objects.ThinkingBlockDelta(text) if block.kind == "reasoning" else objects.InputJsonDelta(text)


def _frame(event: Struct) -> bytes:
    kind = str(type(event).__struct_config__.tag)
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
