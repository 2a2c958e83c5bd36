"""The input of /v1/responses as the messages of a chat, and its tools as those of a chat."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.server.protocol.fields import refuse_field, required
from octavo.server.protocol.limits import check_limit, check_parts
from octavo.server.responses_api.bodies import ITEM_KINDS, ROLES

if TYPE_CHECKING:
    from octavo.server.protocol.limits import RequestLimits
    from octavo.server.responses_api.bodies import ContentPart, InputItem, ResponseBody, Tool

Message = dict[str, Any]


def chat_messages(body: ResponseBody, limits: RequestLimits) -> list[Message]:
    """Return the messages. Raises: `RequestError` naming the item at fault."""
    messages: list[Message] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    if not body.input:
        refuse_field("input", "must be a text or a non-empty list of items")
    check_limit("input", len(body.input), limits.max_messages, "items")
    parts = (part for item in body.input for part in (item.content, item.output, item.summary))
    check_parts("input", parts, limits.max_messages)
    for index, item in enumerate(body.input):
        _add_item(messages, item, f"input[{index}]")
    return _with_one_beginning(messages)


def _with_one_beginning(messages: list[Message]) -> list[Message]:
    """Join the instructions with what systems and developers say next: many templates read one message only."""
    beginning = list(takewhile(lambda message: message["role"] in ("system", "developer"), messages))
    if len(beginning) < 2:
        return messages
    parts: list[Message] = []
    for message in beginning:
        content = message["content"]
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [{"role": "system", "content": parts}, *messages[len(beginning) :]]


def _add_item(messages: list[Message], item: InputItem, where: str) -> None:
    kind = item.type or "message"
    if kind == "message":
        _add_message(messages, item, where)
    elif kind == "function_call":
        arguments = _json_text(item.arguments or "{}", f"{where}.arguments")
        call = {"name": required(item.name, f"{where}.name"), "arguments": arguments}
        call_id = required(item.call_id, f"{where}.call_id")
        answer = _open_answer(messages)
        answer.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": call})
    elif kind == "function_call_output":
        call_id = required(item.call_id, f"{where}.call_id")
        output = _content(required(item.output, f"{where}.output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif kind == "reasoning":
        parts = item.content or item.summary or []
        texts = parts if isinstance(parts, str) else "\n".join(part.text or "" for part in parts)
        if texts:
            messages.append({"role": "assistant", "content": "", "reasoning_content": texts})
    elif kind == "item_reference":
        refuse_field(where, "refers to an item that was stored, but nothing is stored here; send the item itself")
    else:
        refuse_field(f"{where}.type", f"is {reprlib.repr(kind)}; this server reads {', '.join(ITEM_KINDS)}")


def _add_message(messages: list[Message], item: InputItem, where: str) -> None:
    if item.role not in ROLES:
        refuse_field(f"{where}.role", f"must be one of {', '.join(ROLES)}, got {reprlib.repr(item.role)}")
    content = _content(required(item.content, f"{where}.content"), f"{where}.content")
    last = messages[-1] if messages else {}
    if item.role == "assistant" and last.keys() == {"role", "content", "reasoning_content"} and not last["content"]:
        last["content"] = content  # what it thought before stands there already
    else:
        messages.append({"role": item.role, "content": content})


def _open_answer(messages: list[Message]) -> Message:
    """Return the message that a call belongs to: the assistant's last, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})  # which templates read that cannot read null
    return messages[-1]


def _json_text(text: str, where: str) -> str:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        refuse_field(where, "is not JSON")
    return text


def _content(content: str | Sequence[ContentPart], where: str) -> str | list[Message]:
    if isinstance(content, str):
        return content
    parts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("input_text", "output_text", "text", "refusal"):
            rule = "this model reads text only, as input_text or output_text"
            refuse_field(f"{where}[{index}].type", f"is {reprlib.repr(part.type)}; {rule}")
        parts.append({"type": "text", "text": required(text, f"{where}[{index}].text")})
    return parts


def chat_tools(body: ResponseBody) -> list[Message] | None:
    """Return the tools. Raises: `RequestError`."""
    return [_function(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())] or None


def chat_choice(body: ResponseBody) -> str | Message | None:
    """Return the choice among the tools. Raises: `RequestError`."""
    choice = body.tool_choice
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function":
        return _named(choice)
    if choice.get("type") != "allowed_tools":
        refuse_field("tool_choice.type", f"is {reprlib.repr(choice.get('type'))}; there is function and allowed_tools")
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        refuse_field("tool_choice.mode", f'must be "auto" or "required", got {reprlib.repr(mode)}')
    if not isinstance(allowed, list) or not all(isinstance(tool, dict) for tool in allowed):
        refuse_field("tool_choice.tools", "must be a list of functions")
    tools = [_named(tool) for tool in allowed]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _named(choice: Message) -> Message:
    return {"type": "function", "function": {"name": choice.get("name")}}


def _function(tool: Tool, where: str) -> Message:
    if tool.type != "function":
        refuse_field(
            f"{where}.type", f"is {reprlib.repr(tool.type)}; this server has no tools of its own, only functions"
        )
    function: Message = {"name": required(tool.name, f"{where}.name"), "parameters": tool.parameters or {}}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
