"""Reads calls written as JSON objects, `{"name": …, "arguments": {…}}`, while they are being written.

The arguments are passed on as the model wrote them: they are followed, to know where they end, and never evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from octavo.server.parsers.contract import ArgumentsPart, CallPart, Part

SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_HAS_PARTS = frozenset('{["')
_MARK = re.compile(r'["{}\[\]]')
_TEXT_MARK = re.compile(r'["\\]')
_PLAIN_END = re.compile(r"[,}\]\s]")


class ValueScanner:
    """Finds the end of one JSON value."""

    def __init__(self) -> None:
        self._kind = ""
        """Its first character."""
        self._depth = 0
        self._in_text = False
        self._escaped = False

    def scan(self, text: str, position: int) -> tuple[int, bool]:
        """Follow the value on; return where that ended, and whether the value has."""
        if not self._kind and position < len(text):
            self._kind = text[position]
        if self._kind not in _HAS_PARTS:
            end = _PLAIN_END.search(text, position)
            return (end.start(), True) if end else (len(text), False)
        while position < len(text):
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            found = (_TEXT_MARK if self._in_text else _MARK).search(text, position)
            if found is None:
                break
            position = found.end()
            if self._take(found[0]):
                return position, True
        return len(text), False

    def _take(self, mark: str) -> bool:
        """Take a character that may change where the value stands; return whether it ends it."""
        if mark == "\\":
            self._escaped = True
            return False
        if mark == '"':
            self._in_text = not self._in_text
            return not self._in_text and not self._depth
        self._depth += 1 if mark in "{[" else -1
        return self._depth <= 0


class CallReader:
    """Reads one call's object.

    Args:
        index: of the call in its message.
        call_id: its id, unless the object has one that comes before the call can be told.
        accepts: which names are calls; all, if None.
        needs_arguments: whether an object without arguments is no call.
    """

    def __init__(
        self, index: int, call_id: str, *, accepts: Callable[[str], bool] | None = None, needs_arguments: bool = False
    ) -> None:
        self.has_begun = False
        """The call was told: it cannot be taken back."""
        self.state = "reading"
        """Then "done" or "failed"."""
        self._raw: list[str] = []
        self._index = index
        self._call_id = call_id
        self._accepts = accepts
        self._needs_arguments = needs_arguments
        self._step: Callable[[str, int], int] = self._open
        self._key = ""
        self._value: list[str] = []
        self._scanner = ValueScanner()
        self._name: str | None = None
        self._arguments: str | None = None
        self._parts: list[Part] = []

    @property
    def raw(self) -> str:
        """All that was read until the call was told."""
        return "".join(self._raw)

    def read(self, text: str, position: int) -> tuple[int, list[Part]]:
        """Read on; return where that ended, and what is new. Where it has failed, `raw` is text if no call was told."""
        self._parts = []
        while self.state == "reading" and position < len(text):
            start = position
            position = self._step(text, position)
            if not self.has_begun:
                self._raw.append(text[start:position])
        return position, self._parts

    def _open(self, text: str, position: int) -> int:
        return self._expect(text, position, {"{": self._key_or_end})

    def _key_or_end(self, text: str, position: int) -> int:
        if text[position] == '"':
            self._begin_value(self._in_key)
            return position
        return self._expect(text, position, {"}": None})

    def _key_begins(self, text: str, position: int) -> int:
        if text[position] == '"':
            self._begin_value(self._in_key)
            return position
        return self._expect(text, position, {})

    def _in_key(self, text: str, position: int) -> int:
        end, is_done = self._scanner.scan(text, position)
        self._value.append(text[position:end])
        if is_done:
            key = _loaded("".join(self._value))
            self._key = key if isinstance(key, str) else ""
            self._step = self._colon
        return end

    def _colon(self, text: str, position: int) -> int:
        return self._expect(text, position, {":": self._value_begins})

    def _value_begins(self, text: str, position: int) -> int:
        if text[position] in SPACE:
            return position + 1
        self._begin_value(self._in_value)
        if self._key in _ARGUMENTS and self._arguments is None and text[position] == "{" and self._name is not None:
            self._begin_call("")
            self._step = self._in_arguments
        return position

    def _in_value(self, text: str, position: int) -> int:
        end, is_done = self._scanner.scan(text, position)
        self._value.append(text[position:end])
        if is_done:
            self._take_value()
        return end

    def _in_arguments(self, text: str, position: int) -> int:
        """Pass the arguments on as they come."""
        end, is_done = self._scanner.scan(text, position)
        self._parts.append(ArgumentsPart(self._index, text[position:end]))
        if is_done:
            self._step = self._comma_or_end
        return end

    def _comma_or_end(self, text: str, position: int) -> int:
        return self._expect(text, position, {",": self._key_begins, "}": None})

    def _take_value(self) -> None:
        self._step = self._comma_or_end
        text = "".join(self._value)
        value = _loaded(text)
        if self._key == "name":
            if not isinstance(value, str) or not value or not (self._accepts is None or self._accepts(value)):
                self.state = "failed"
            self._name = value
        elif self._key == "id" and isinstance(value, str) and value:
            self._call_id = value
        elif self._key in _ARGUMENTS and self._arguments is None:
            self._arguments = _arguments_text(text)
            if self._arguments is None:
                self.state = "failed"

    def _expect(self, text: str, position: int, follows: dict[str, Callable[[str, int], int] | None]) -> int:
        """Take one character: white space, or one of some; None ends the object."""
        char = text[position]
        if char in SPACE:
            return position + 1
        if char not in follows:
            self.state = "failed"
            return position
        step = follows[char]
        if step is None:
            self._end()
        else:
            self._step = step
        return position + 1

    def _begin_value(self, step: Callable[[str, int], int]) -> None:
        self._scanner = ValueScanner()
        self._value = []
        self._step = step

    def _begin_call(self, arguments: str) -> None:
        self.has_begun = True
        self._parts.append(CallPart(self._index, self._call_id, self._name or ""))
        if arguments:
            self._parts.append(ArgumentsPart(self._index, arguments))

    def _end(self) -> None:
        if not self.has_begun:
            if self._name is None or (self._arguments is None and self._needs_arguments):
                self.state = "failed"
                return
            self._begin_call(self._arguments or "{}")
        self.state = "done"


def _arguments_text(value: str) -> str | None:
    """Return the arguments that a value stands for, which may be JSON within a text, or null; None if it is no such."""
    loaded = _loaded(value)
    if loaded is None:
        return "{}" if value == "null" else None
    if isinstance(loaded, str):
        return loaded if isinstance(_loaded(loaded), dict) else None
    return value if isinstance(loaded, dict) else None


def _loaded(text: str) -> Any:
    """Return what JSON stands for; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
