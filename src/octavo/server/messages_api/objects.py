"""The answer of /v1/messages, the events of its stream, and its errors as typed structs."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(Struct, kw_only=True, tag_field="type", tag="text"):
    """What the model says."""

    text: str = ""


class ThinkingBlock(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """What it thought before."""

    thinking: str = ""
    signature: str = ""
    """Nothing is signed here."""


class ToolUseBlock(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A tool that it wants called."""

    id: str
    name: str
    input: dict[str, Any] = {}


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(Struct, kw_only=True):
    """Tokens of a request. A prompt's tokens that were found in the cache are not among `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


class MessageObject(Struct, kw_only=True):
    """Of /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(Struct):
    """Of /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """The first event."""

    message: MessageObject


class Ping(Struct, tag_field="type", tag="ping"):
    """An event that says nothing."""


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: AnswerBlock


class TextBlockDelta(Struct, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingBlockDelta(Struct, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta"):
    """More of a tool's input; all together are JSON, unless the output was cut."""

    partial_json: str


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """A block has grown."""

    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | InputJsonDelta


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """A block has ended."""

    index: int


class StopDelta(Struct):
    """Why the message has ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """The message has ended."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """The last event."""


class MessagesErrorInfo(Struct):
    """What went wrong."""

    type: str
    message: str


class MessagesError(Struct, tag_field="type", tag="error"):
    """The body of every answer but 2xx, and the event that ends a stream that has failed."""

    error: MessagesErrorInfo


EVENTS = (MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessagesError)
