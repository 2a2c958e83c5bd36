"""The bodies of /v1/messages as chats: to generate, with the answer that writes its blocks, or to count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.server.messages_api.answer import MessagesAnswer
from octavo.server.messages_api.bodies import MessagesBody, PromptBody
from octavo.server.messages_api.conversation import chat_choice, chat_messages, chat_tools, goes_on
from octavo.server.protocol.bodies import ChatBody
from octavo.server.protocol.calls import chat_call
from octavo.server.protocol.decoding import read_body
from octavo.server.protocol.prompts import template_arguments
from octavo.server.protocol.tools import read_tools

if TYPE_CHECKING:
    from octavo.server.parsers.plan import MakeParser
    from octavo.server.protocol.answers import Answer
    from octavo.server.protocol.calls import Call, ProtocolContext

_PASSED_ON = (
    "stream", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "ignore_eos", "min_tokens",
    "structured_outputs", "cache_salt", "priority", "request_id",
)  # fmt: skip
NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "].function": "]",
    "].function.parameters": "].input_schema",
    'tool_choice "required" or a named function': 'tool_choice "any" or "tool"',
    "continue_final_message": "messages",
    "continue_final_message needs": "messages that end with one by the assistant need",
}
"""What errors about a chat are to name here."""
_OWN_TOOLS = "this server runs no tools itself; leave it out"


def parse_messages(raw: bytes, context: ProtocolContext) -> Call:
    """Read the body of /v1/messages. Raises: `RequestError`, `ApiError`."""
    body = read_body(raw, MessagesBody)
    name = context.served_name(body.model)
    for field in ("container", "mcp_servers"):
        if getattr(body, field):
            raise RequestError(f"{field} cannot be served: {_OWN_TOOLS}.", parameter=field)

    def make_answer(request_id: str, created: int, make_parser: MakeParser) -> Answer:
        del created
        parser = make_parser(0)
        return MessagesAnswer(f"msg_{request_id}", name, parser, tells_cached_tokens=context.tells_cached_tokens)

    values = {field: getattr(body, field) for field in _PASSED_ON}
    chat = _chat_body(body, context, max_tokens=body.max_tokens, stop=body.stop_sequences, **values)
    return chat_call(chat, context, make_answer)


def parse_count(raw: bytes, context: ProtocolContext) -> dict[str, Any]:
    """Read the body of /v1/messages/count_tokens; return the arguments of `Tokenizer.apply_chat_template`.

    Raises: `RequestError`, `ApiError`.
    """
    body = read_body(raw, PromptBody)
    context.served_name(body.model)
    chat = _chat_body(body, context)
    return template_arguments(chat, context.limits, read_tools(chat, context.limits).shown)


def _chat_body(body: PromptBody, context: ProtocolContext, **fields: Any) -> ChatBody:
    choice = body.tool_choice
    tools = chat_tools(body.tools)
    messages = chat_messages(body, context.limits)
    return ChatBody(
        messages=messages,
        tools=tools,
        tool_choice=chat_choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=_response_format(body),
        continue_final_message=goes_on(body),
        reasoning_effort=body.output_config.effort if body.output_config is not None else None,
        chat_template_kwargs=_template_variables(body),
        **fields,
    )


def _response_format(body: PromptBody) -> dict[str, Any] | None:
    wanted = body.output_config.format if body.output_config is not None else None
    if not wanted:
        return None
    if wanted.get("type") != "json_schema":
        raise RequestError("output_config.format.type must be json_schema.", parameter="output_config")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted.get("schema")}}


def _template_variables(body: PromptBody) -> dict[str, Any] | None:
    if body.thinking is None or body.thinking.type == "adaptive":
        return body.chat_template_kwargs
    return {"enable_thinking": body.thinking.type != "disabled", **(body.chat_template_kwargs or {})}
