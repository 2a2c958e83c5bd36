"""A tool's input, whose JSON `max_tokens` may cut: what is there of it, as Anthropic's clients put it together."""

from __future__ import annotations

import json
import re

_TOKEN = re.compile(
    r'[ \t\r\n]*(?:(?P<text>"[^"\\]*(?:\\.[^"\\]*)*")'
    r"|(?P<plain>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\d.eE])|true|false|null)"
    r"|(?P<mark>[][{}:,]))",
    re.DOTALL,
)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_CLOSING = {"{": "}", "[": "]"}


def read_cut_object(text: str) -> dict[str, object]:
    """Return the members of a JSON object that are there; of one that was cut, lists and objects as far as they are."""
    try:
        value = json.loads(_closed(text))
        written = json.dumps(value, ensure_ascii=False)
        if _LONE_SURROGATE.search(written):  # an escape of half a character: no UTF-8 can hold it
            value = json.loads(_LONE_SURROGATE.sub("\ufffd", written))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _closed(text: str) -> str:
    """Return a text up to the last value that is complete or open, with what is open closed."""
    end = position = 0
    closing: list[str] = []
    is_name = False
    while match := _TOKEN.match(text, position):
        position, mark = match.end(), match["mark"]
        if mark in _CLOSING:
            closing.append(_CLOSING[mark])
        elif mark in ("}", "]"):
            del closing[-1:]
        if mark in ("{", ","):
            is_name = closing[-1:] == ["}"]
        elif mark == ":":
            is_name = False
        if mark not in (":", ",") and not (match["text"] and is_name):
            end = position
    return text[:end] + "".join(reversed(closing))
