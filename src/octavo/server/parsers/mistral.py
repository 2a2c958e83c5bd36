"""Reads `[TOOL_CALLS]`, then a JSON list of calls, or `name[ARGS]{…}` with `[CALL_ID]id` between: Mistral.

Source: the chat templates of mistralai/Mistral-Nemo-Instruct-2407 (list), Mistral-Small-3.2-24B-Instruct-2506 (ids),
Ministral-3-14B-Reasoning-2512.
"""

from __future__ import annotations

import re

from octavo.server.parsers.call_stream import CallArray, MakeId
from octavo.server.parsers.json_calls import ValueScanner
from octavo.server.parsers.markers import find_marker

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[a-zA-Z0-9_.-]+")
_MAX_ID_CHARS = 64


class MistralParser(CallArray):
    """Any number of calls, with text before them."""

    def __init__(self, call_id: MakeId) -> None:
        super().__init__(call_id)
        self._name = ""
        self._id: str | None = None
        self._scanner = ValueScanner()

    def outside(self) -> bool:
        """Show text up to the mark."""
        at, mark = find_marker(self.rest, [CALLS])
        self.show(self.take(at))
        if mark is None:
            return False
        self.given_back = self.take(len(mark))
        self.step = self._form
        return True

    def _form(self) -> bool:
        """Tell the older form by its first character."""
        self.given_back += self.take_space()
        if not self.rest:
            return False
        if self.rest[0] == "[":
            self.begin_array(self.given_back + self.take(1))
        elif self.rest[0] == "{":
            self.begin_object()
            self.step = self._single
        else:
            self.step = self._names
        return True

    def _single(self) -> bool:
        return self.read_object(self.outside)

    def _names(self) -> bool:
        rest = self.rest
        match = _NAME.match(rest)
        behind = rest[match.end() :] if match else ""
        if match and not behind:
            return False
        mark = next((mark for mark in (CALL_ID, ARGS) if behind.startswith(mark)), None)
        if match and mark is None and any(mark.startswith(behind) for mark in (CALL_ID, ARGS)):
            return False
        if not match or (mark is None and not behind.startswith("{")):
            return self.fail()
        self._name, self._id = match[0], None
        self.given_back += self.take(match.end() + len(mark or ""))
        self.step = self._ids if mark == CALL_ID else self._arguments_begin
        return True

    def _ids(self) -> bool:
        at, mark = find_marker(self.rest, [ARGS])
        if at > _MAX_ID_CHARS:
            return self.fail()
        if mark is None:
            return False
        self._id = self.rest[:at].strip()
        self.given_back += self.take(at + len(mark))
        self.step = self._arguments_begin
        return True

    def _arguments_begin(self) -> bool:
        self.given_back += self.take_space()
        if not self.rest:
            return False
        if self.rest[0] != "{":
            return self.fail()
        self._scanner = ValueScanner()
        self.begin_call(self._name, self._id)
        self.step = self._arguments
        return True

    def _arguments(self) -> bool:
        end, is_done = self._scanner.scan(self.held, self.position)
        self.add_arguments(self.take(end - self.position))
        if is_done:
            self.step = self.outside
        return is_done
