"""The body of POST /v1/responses as typed structs: OpenAI's fields, and vLLM's extras.

Input items are of one wide struct, so that the decoder names the field that has a wrong type; `conversation` checks
what each kind needs. Fields that are not listed are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from octavo.server.protocol.bodies import (
    Count,
    Natural,
    SamplingFields,
)

ITEM_KINDS = ("message", "function_call", "function_call_output", "reasoning")
ROLES = ("user", "assistant", "system", "developer")


class ContentPart(Struct, kw_only=True):
    """A part of a message, of a tool's output or of a thought."""

    type: Annotated[
        str,
        Meta(
            extra_json_schema={
                "enum": ["input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"]
            }
        ),
    ]
    text: str | None = None
    refusal: str | None = None


class InputItem(Struct, kw_only=True):
    """What was said, called or answered before: a message, unless `type` says otherwise."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(ITEM_KINDS)})] | None = None
    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})] | None = None
    content: str | list[ContentPart] | None = None
    """Of a message, or of a thought."""
    summary: list[ContentPart] | None = None
    """Of a thought; read where it has no content."""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    """JSON text."""
    output: str | list[ContentPart] | None = None


class Tool(Struct, kw_only=True):
    """A function that the model may call."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["function"]})]
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema."""
    strict: bool | None = None


class TextFormat(Struct, kw_only=True, omit_defaults=True):
    """The form of the answer."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["text", "json_object", "json_schema"]})]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(Struct, kw_only=True, omit_defaults=True):
    """About the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None
    """Read, and of no effect."""


class ReasoningOptions(Struct, kw_only=True):
    """About the thought before the answer."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """The chat template gets it as `reasoning_effort`; with none, `enable_thinking` as false too."""
    summary: str | None = None
    """Read, and of no effect: thoughts are told whole."""


OF_CHATS = ("max_tokens", "max_completion_tokens", "response_format")
"""Fields of a chat that have another name here: refused, as an answer without its limit may take minutes."""


class ResponseBody(SamplingFields, kw_only=True):
    """Of POST /v1/responses."""

    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: Natural | None = None
    """How many to tell with each token, where `include` asks for logprobs."""
    metadata: dict[str, str] | None = None
    store: bool | None = None
    """Read, and of no effect: nothing is stored, as the answer's own `store` says."""
    truncation: Literal["auto", "disabled"] | None = None
    """Nothing is ever cut off: an input that does not fit is an error with both."""
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    """OpenAI's stored prompts; refused, as are the three before it."""
    max_tokens: Any = None
    max_completion_tokens: Any = None
    response_format: Any = None
    """See `OF_CHATS`."""
    chat_template_kwargs: dict[str, Any] | None = None
