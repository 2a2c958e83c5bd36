"""The bodies of POST /v1/messages and /v1/messages/count_tokens as typed structs: Anthropic's fields, some extras.

Content blocks are of one wide struct, so that the decoder names the field that has a wrong type; `conversation` checks
what each kind needs. Fields that are not listed are ignored, `cache_control` among them: every prompt is cached.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from octavo.server.protocol.bodies import (
    CacheSalt,
    Count,
    Int64,
    MinP,
    Natural,
    RepetitionPenalty,
    Temperature,
    Text,
    TopK,
    TopP,
)

BLOCK_KINDS = ("text", "tool_use", "tool_result", "thinking")


class ContentBlock(Struct, kw_only=True):
    """A part of a message, of the system prompt, or of a tool's result."""

    type: Annotated[str, Meta(extra_json_schema={"enum": [*BLOCK_KINDS, "redacted_thinking"]})]
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    """Of a tool call."""
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    """Of the call that a result answers."""
    content: str | list[ContentBlock] | None = None
    """Of a result."""
    is_error: bool | None = None


class MessageEntry(Struct, kw_only=True):
    """One message of a conversation. A last one by the assistant is where the model goes on."""

    role: Annotated[str, Meta(extra_json_schema={"enum": ["user", "assistant", "system"]})]
    content: str | list[ContentBlock]


class ToolEntry(Struct, kw_only=True):
    """A function that the model may call."""

    name: str
    type: str | None = None
    """custom, or left out."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    """A JSON schema."""
    strict: bool | None = None


class ToolChoice(Struct, kw_only=True):
    """Whether and which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """With tool."""
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, kw_only=True):
    """About the thought before the answer: the chat template gets `enable_thinking`."""

    type: str
    budget_tokens: int | None = None
    """Read, and of no effect: `max_tokens` is the limit of thought and answer together."""


class OutputConfig(Struct, kw_only=True):
    """The form of the answer."""

    format: dict[str, Any] | None = None
    """`{"type": "json_schema", "schema": …}`."""
    effort: str | None = None
    """The chat template gets it as `reasoning_effort`."""


class PromptBody(Struct, kw_only=True):
    """What the model is to read. Of POST /v1/messages/count_tokens."""

    messages: list[MessageEntry]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    tools: list[ToolEntry] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(PromptBody, kw_only=True):
    """Of POST /v1/messages."""

    max_tokens: Count
    stop_sequences: list[Text] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    container: Any = None
    mcp_servers: list[Any] | None = None

    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Int64 | None = None
    ignore_eos: bool | None = None
    min_tokens: Natural | None = None
    structured_outputs: dict[str, Any] | None = None
    cache_salt: CacheSalt | None = None
    priority: Int64 | None = None
    request_id: Text | None = None
