"""The body of /v1/responses as a chat to generate, with the answer that writes its items."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.server.protocol.bodies import ChatBody, SamplingFields
from octavo.server.protocol.calls import chat_call
from octavo.server.protocol.decoding import read_body
from octavo.server.protocol.errors import ApiError
from octavo.server.responses_api.answer import ResponseAnswer
from octavo.server.responses_api.bodies import OF_CHATS, ResponseBody
from octavo.server.responses_api.conversation import chat_choice, chat_messages, chat_tools
from octavo.server.responses_api.objects import ResponseObject

if TYPE_CHECKING:
    from octavo.server.parsers.plan import MakeParser
    from octavo.server.protocol.answers import Answer
    from octavo.server.protocol.calls import Call, ProtocolContext
    from octavo.server.responses_api.bodies import TextOptions

LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""All but the first are of what never occurs here, or of what is told anyway."""
_PASSED_ON = (*SamplingFields.__struct_fields__, "parallel_tool_calls", "chat_template_kwargs")
NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "].function": "]",
    "tool_choice.allowed_tools": "tool_choice",
    '{"type": "function", "function": {"name": …}}': '{"type": "function", "name": …}',
}
"""What errors about a chat are to name here."""
_MAX_METADATA, _MAX_METADATA_CHARS = 16, 512


def parse_response(raw: bytes, context: ProtocolContext) -> Call:
    """Read the body of /v1/responses. Raises: `RequestError`, `ApiError`."""
    body = read_body(raw, ResponseBody)
    name = context.served_name(body.model)
    _check(body)
    chat = _chat_body(body, context)

    def make_answer(request_id: str, created: int, make_parser: MakeParser) -> Answer:
        return ResponseAnswer(
            _blank(body, context, request_id=request_id, created=created, model=name),
            make_parser(0),
            context.texts,
            num_top=chat.top_logprobs,
            tells_cached_tokens=context.tells_cached_tokens,
        )

    return chat_call(chat, context, make_answer)


def _check(body: ResponseBody) -> None:
    for field in OF_CHATS:
        if getattr(body, field) is not None:
            raise ApiError(400, f"{field} belongs to /v1/chat/completions; here it is {NAMES[field]}.", field)
    stored = "nothing is stored between requests; send the whole conversation as input"
    for field, way_out in (
        ("previous_response_id", stored),
        ("conversation", stored),
        ("prompt", "there are no stored prompts; use instructions and input"),
        ("background", "answers are given at once; leave it out"),
    ):
        if getattr(body, field):
            raise RequestError(f"{field} cannot be served: {way_out}.", parameter=field)
    for entry in body.include or ():
        if entry not in _INCLUDABLE:
            known = ", ".join(sorted(_INCLUDABLE))
            raise RequestError(f"include has {reprlib.repr(entry)}; there is {known}.", parameter="include")
    if body.top_logprobs and not _wants_logprobs(body):
        raise RequestError(f"top_logprobs needs include to have {LOGPROBS}.", parameter="top_logprobs")
    if body.tools and _wants_logprobs(body):
        raise RequestError(f"{LOGPROBS} cannot be had beside tools; leave one out.", parameter="include")
    metadata = body.metadata or {}
    if len(metadata) > _MAX_METADATA or any(
        len(text) > _MAX_METADATA_CHARS for entry in metadata.items() for text in entry
    ):
        limit = f"{_MAX_METADATA} entries of {_MAX_METADATA_CHARS} characters"
        raise RequestError(f"metadata has more than {limit}.", parameter="metadata")


def _wants_logprobs(body: ResponseBody) -> bool:
    return LOGPROBS in (body.include or ())


def _chat_body(body: ResponseBody, context: ProtocolContext) -> ChatBody:
    logprobs = _wants_logprobs(body)
    return ChatBody(
        messages=chat_messages(body, context.limits),
        tools=chat_tools(body),
        tool_choice=chat_choice(body),
        max_completion_tokens=body.max_output_tokens,
        response_format=_response_format(body.text),
        logprobs=logprobs,
        top_logprobs=(body.top_logprobs or 0) if logprobs else None,
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        **{name: getattr(body, name) for name in _PASSED_ON},
    )


def _response_format(text: TextOptions | None) -> dict[str, Any] | None:
    wanted = text.format if text is not None else None
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    if wanted.schema is None:
        raise RequestError("text.format.schema is required.", parameter="text")
    return {"type": "json_schema", "json_schema": {"name": wanted.name, "schema": wanted.schema}}


def _blank(
    body: ResponseBody, context: ProtocolContext, *, request_id: str, created: int, model: str
) -> ResponseObject:
    """Return the answer before anything is generated."""
    defaults = context.default_sampling_params
    blank = ResponseObject(
        id=f"resp_{request_id}",
        created_at=created,
        model=model,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=body.reasoning,
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
    )
    if body.text is not None and body.text.format is not None:
        blank.text = body.text
    return blank
