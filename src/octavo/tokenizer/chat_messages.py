"""Checks the messages of a conversation, and puts their content in the form a chat template reads.

OpenAI's API lets content be a string or a list of parts; older templates know only strings, newer ones only parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import RequestError

Message = dict[str, Any]

_TEXT_PARTS = ("text", "input_text", "output_text")


def check_messages(messages: object, content_format: str) -> list[Message]:
    """Return copies of the messages, their content as a "string", as "parts", or as it is ("either").

    Raises: RequestError naming the index of the message at fault.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise RequestError("messages must be a non-empty list of dicts with a role", parameter="messages")
    return [_check_message(message, f"messages[{i}]", content_format) for i, message in enumerate(messages)]


def final_text(message: Message) -> str:
    """Return the text a message ends with."""
    content = message.get("content")
    if isinstance(content, list):
        return str(content[-1].get("text", "")) if content else ""
    return content if isinstance(content, str) else ""


def _check_message(message: object, where: str, content_format: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is a {type(message).__name__}, expected a dict with a role", parameter="messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role is {role!r}, expected a name such as 'user'", parameter="messages")
    checked = dict(message)
    content = _check_content(message.get("content"), f"{where}.content")
    thought = message.get("reasoning_content") or message.get("reasoning")
    if content is None and not message.get("tool_calls") and not (role == "assistant" and thought):
        raise RequestError(f"{where} has neither content nor tool_calls", parameter="messages")
    if isinstance(content, list) and content_format == "string":
        content = "\n".join(part["text"] for part in content)
    elif isinstance(content, str) and content_format == "parts":
        content = [{"type": "text", "text": content}]
    elif content is None:
        content = [] if content_format == "parts" else ""  # templates look into it without asking whether it is there
    checked["content"] = content
    if isinstance(thought, str):
        checked["reasoning_content"] = thought  # the older of two names, which templates read
    if message.get("tool_calls"):
        checked["tool_calls"] = _check_tool_calls(message["tool_calls"], f"{where}.tool_calls")
    return checked


def _check_content(content: object, where: str) -> str | list[dict[str, str]] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise RequestError(
            f"{where} is a {type(content).__name__}, expected a string or a list of parts", parameter="messages"
        )
    return [_check_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _check_part(part: object, where: str) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in _TEXT_PARTS:
        raise RequestError(
            f"{where} has type {kind!r}; this model reads text only, as {{'type': 'text', 'text': …}}",
            parameter="messages",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text is a {type(text).__name__}, expected a string", parameter="messages")
    return {"type": "text", "text": text}


def _check_tool_calls(calls: object, where: str) -> list[Message]:
    """Return the calls with their arguments as objects: OpenAI's API has them as JSON text, templates want a dict."""
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise RequestError(f"{where} must be a list of dicts", parameter="messages")
    checked = []
    for i, call in enumerate(calls):
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, Mapping) else {}
        if isinstance(function, Mapping) and (arguments is None or isinstance(arguments, str)):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as error:
                raise RequestError(
                    f"{where}[{i}].function.arguments is not JSON: {error}", parameter="messages"
                ) from None
            call = {**call, "function": {**function, "arguments": arguments}}
        checked.append(dict(call))
    return checked
