"""The answer of /v1/responses and the events of its stream as typed structs."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from octavo.server.protocol.responses import TokenLogprob
from octavo.server.responses_api.bodies import ReasoningOptions, TextFormat, TextOptions, Tool

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str = ""
    annotations: list[dict[str, Any]] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The text of a thought."""

    text: str = ""


class MessageItem(Struct, kw_only=True, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: Status = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class ReasoningItem(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What it thought before."""

    id: str
    status: Status = "in_progress"
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText] = []


class CallItem(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A function that it wants called."""

    id: str
    status: Status = "in_progress"
    call_id: str
    name: str
    arguments: str = ""
    """JSON text, unless the output was cut."""


OutputItem = MessageItem | ReasoningItem | CallItem


class InputTokensDetails(Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct):
    """What the output's tokens are."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct):
    """Tokens of a request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Struct):
    """Why an answer was cut."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFailure(Struct):
    """Why there is no whole answer."""

    code: str
    message: str


class ResponseObject(Struct, kw_only=True):
    """Of /v1/responses."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: ReasoningOptions | None = None
    store: bool = False
    temperature: float
    text: TextOptions = field(default_factory=lambda: TextOptions(format=TextFormat(type="text")))
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[Tool] = []
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None


class Event(Struct, kw_only=True, tag_field="type"):
    """What all events of a stream have."""

    sequence_number: int = 0


class ResponseEvent(Event, kw_only=True):
    """About the whole answer."""

    response: ResponseObject


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    """The first event."""


class ResponseInProgress(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """The second."""


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    """The last, of an answer that is whole."""


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """The last, of an answer that was cut."""


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    """The last, of an answer that could not be finished."""


class ItemEvent(Event, kw_only=True):
    """About one item."""

    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, kw_only=True, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(ItemEvent, kw_only=True, tag="response.output_item.done"):
    """An item has ended."""


class ContentEvent(Event, kw_only=True):
    """About the one part of a message or of a thought."""

    item_id: str
    output_index: int
    content_index: int = 0


class PartAdded(ContentEvent, kw_only=True, tag="response.content_part.added"):
    """A part begins."""

    part: OutputText | ReasoningText


class PartDone(ContentEvent, kw_only=True, tag="response.content_part.done"):
    """A part has ended."""

    part: OutputText | ReasoningText


class TextDelta(ContentEvent, kw_only=True, tag="response.output_text.delta"):
    """More of a text."""

    delta: str
    logprobs: list[TokenLogprob] = []


class TextDone(ContentEvent, kw_only=True, tag="response.output_text.done"):
    """A whole text."""

    text: str
    logprobs: list[TokenLogprob] = []


class ReasoningDelta(ContentEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """More of a thought."""

    delta: str


class ReasoningDone(ContentEvent, kw_only=True, tag="response.reasoning_text.done"):
    """A whole thought."""

    text: str


class ArgumentsDelta(Event, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Event, kw_only=True, tag="response.function_call_arguments.done"):
    """A call's whole arguments."""

    item_id: str
    output_index: int
    name: str
    arguments: str


EVENTS = (
    ResponseCreated, ResponseInProgress, ItemAdded, PartAdded, TextDelta, TextDone, ReasoningDelta, ReasoningDone,
    ArgumentsDelta, ArgumentsDone, PartDone, ItemDone, ResponseCompleted, ResponseIncomplete, ResponseFailed,
)  # fmt: skip
"""In the order in which they may come."""
