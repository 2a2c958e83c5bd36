"""The messages of /v1/messages as those of a chat, and its tools as those of a chat."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from octavo.server.messages_api.bodies import BLOCK_KINDS
from octavo.server.protocol.fields import refuse_field, required
from octavo.server.protocol.limits import check_limit, check_parts

if TYPE_CHECKING:
    from octavo.server.messages_api.bodies import ContentBlock, MessageEntry, PromptBody, ToolChoice, ToolEntry
    from octavo.server.protocol.limits import RequestLimits

Message = dict[str, Any]


def chat_messages(body: PromptBody, limits: RequestLimits) -> list[Message]:
    """Return the messages. Raises: `RequestError` naming the block at fault."""
    if not body.messages:
        refuse_field("messages", "must be a non-empty list")
    check_limit("messages", len(body.messages), limits.max_messages, "messages")
    check_parts("messages", (entry.content for entry in body.messages), limits.max_messages)
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": _texts(body.system, "system")})
    for index, entry in enumerate(body.messages):
        where = f"messages[{index}]"
        if entry.role == "assistant":
            messages.append(_answer(entry, where))
        elif entry.role == "user":
            messages += _turn(entry, where)
        elif entry.role == "system":
            messages.append({"role": "system", "content": _texts(entry.content, f"{where}.content")})
        else:
            refuse_field(f"{where}.role", f"must be user, assistant or system, got {reprlib.repr(entry.role)}")
    check_limit("messages", len(messages), limits.max_messages, "messages and tool results")
    return messages


def goes_on(body: PromptBody) -> bool:
    """Whether the model is to go on in the last message, which then is text by the assistant."""
    last = body.messages[-1]
    if last.role != "assistant":
        return False
    return isinstance(last.content, str) or all(block.type == "text" for block in last.content)


def _answer(entry: MessageEntry, where: str) -> Message:
    """Return a message of the assistant: its text, its thoughts, its calls."""
    if isinstance(entry.content, str):
        return {"role": "assistant", "content": entry.content}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for index, block in enumerate(entry.content):
        at = f"{where}.content[{index}]"
        if block.type == "text":
            texts.append(required(block.text, f"{at}.text"))
        elif block.type == "thinking":
            thoughts.append(required(block.thinking, f"{at}.thinking"))
        elif block.type == "tool_use":
            arguments = json.dumps(required(block.input, f"{at}.input"), ensure_ascii=False)
            function = {"name": required(block.name, f"{at}.name"), "arguments": arguments}
            calls.append({"id": required(block.id, f"{at}.id"), "type": "function", "function": function})
        elif block.type != "redacted_thinking":
            _refuse_kind(block, at)
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _turn(entry: MessageEntry, where: str) -> list[Message]:
    """Return the messages of one turn of the user: results of tools, each in one of its own, and texts."""
    if isinstance(entry.content, str):
        return [{"role": "user", "content": entry.content}]
    messages: list[Message] = []
    for index, block in enumerate(entry.content):
        at = f"{where}.content[{index}]"
        if block.type == "tool_result":
            call_id = required(block.tool_use_id, f"{at}.tool_use_id")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": _result(block, at)})
        elif messages and messages[-1]["role"] == "user":
            messages[-1]["content"].append(_text_part(block, at))
        else:
            messages.append({"role": "user", "content": [_text_part(block, at)]})
    return messages or [{"role": "user", "content": ""}]


def _result(block: ContentBlock, where: str) -> str | list[Message]:
    content = _texts(block.content or "", f"{where}.content")
    if not block.is_error:
        return content
    return f"Error: {content}" if isinstance(content, str) else [{"type": "text", "text": "Error:"}, *content]


def _texts(content: str | Sequence[ContentBlock], where: str) -> str | list[Message]:
    """Return what holds text only. Raises: `RequestError`."""
    if isinstance(content, str):
        return content
    return [_text_part(block, f"{where}[{index}]") for index, block in enumerate(content)]


def _text_part(block: ContentBlock, where: str) -> Message:
    if block.type != "text":
        _refuse_kind(block, where)
    return {"type": "text", "text": required(block.text, f"{where}.text")}


def chat_tools(tools: Sequence[ToolEntry] | None) -> list[Message] | None:
    """Return the tools. Raises: `RequestError` for one that a server of Anthropic's would run itself."""
    chat: list[Message] = []
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if tool.type not in (None, "custom"):
            refuse_field(
                f"{where}.type", f"is {reprlib.repr(tool.type)}; this server has no tools of its own, only custom ones"
            )
        function: Message = {"name": tool.name, "parameters": required(tool.input_schema, f"{where}.input_schema")}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.strict is not None:
            function["strict"] = tool.strict
        chat.append({"type": "function", "function": function})
    return chat or None


def chat_choice(choice: ToolChoice | None) -> str | Message | None:
    """Return the choice among the tools. Raises: `RequestError`."""
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": required(choice.name, "tool_choice.name")}}
    return "required" if choice.type == "any" else choice.type


def _refuse_kind(block: ContentBlock, where: str) -> NoReturn:
    if block.type in BLOCK_KINDS:
        refuse_field(f"{where}.type", f"is {block.type}, which cannot stand here")
    refuse_field(
        f"{where}.type", f"is {reprlib.repr(block.type)}; this model reads text only: {', '.join(BLOCK_KINDS)}"
    )
