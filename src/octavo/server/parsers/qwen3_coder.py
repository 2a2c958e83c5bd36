"""Reads `<tool_call><function=name><parameter=x>value</parameter></function></tool_call>`: Qwen 3 Coder, Qwen 3.5.

Values are text; the schema of the tool says what they stand for, and nothing is ever evaluated.

Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.server.parsers.call_stream import CallStream, MakeId
from octavo.server.parsers.markers import CALL_CLOSE, CALL_OPEN, find_marker
from octavo.server.parsers.typed_values import is_plain_text, value_text

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_NO_NAME = frozenset("<\n\r\t ")
_MAX_NAME_CHARS = 256


class Qwen3CoderParser(CallStream):
    """Any number of calls, with text around them; the outer marks may be missing.

    Args:
        tools: schemas of the parameters, by the tools' names.
    """

    def __init__(self, call_id: MakeId, tools: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(call_id)
        self._tools = tools
        self._properties: Mapping[str, Any] = {}
        self._schema: Any = None
        self._has_parameters = False
        self._is_first_piece = False

    def outside(self) -> bool:
        """Show text up to the next mark."""
        at, mark = find_marker(self.rest, [CALL_OPEN, FUNCTION])
        self.show(self.take(at))
        if mark is None:
            return False
        self.given_back = self.take(len(mark))
        self.step = self._opened if mark == CALL_OPEN else self._name
        return True

    def _opened(self) -> bool:
        start = self.rest.lstrip()
        if start.startswith(FUNCTION):
            self.given_back += self.take_space() + self.take(len(FUNCTION))
            self.step = self._name
            return True
        return False if FUNCTION.startswith(start) else self.fail()

    def _name(self) -> bool:
        name, end, _ = self.rest[: _MAX_NAME_CHARS + 1].partition(">")
        if _NO_NAME.intersection(name) or len(name) > _MAX_NAME_CHARS or (end and not name):
            return self.fail()
        if not end:
            return False
        self.take(len(name) + 1)
        schema = self._tools.get(name, {})
        properties = schema.get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._has_parameters = False
        self.begin_call(name)
        self.add_arguments("{")
        self.step = self._between
        return True

    def _between(self) -> bool:
        """Within the call, outside its parameters."""
        at, mark = find_marker(self.rest, [PARAMETER, FUNCTION_END, CALL_CLOSE])
        self.show(self.take(at))
        if mark is None:
            return False
        self.take(len(mark))
        if mark == PARAMETER:
            self.step = self._key
            return True
        self.add_arguments("}")
        self._text.call()
        self.step = self.outside if mark == CALL_CLOSE else self._behind
        return True

    def _key(self) -> bool:
        key, end, _ = self.rest.partition(">")
        if not end:
            return False
        self.take(len(key) + 1)
        self._schema = self._properties.get(key)
        self.add_arguments((", " if self._has_parameters else "") + json.dumps(key, ensure_ascii=False) + ": ")
        self._has_parameters = True
        self._is_first_piece = True
        is_plain = is_plain_text(self._schema)
        self.add_arguments('"' if is_plain else "")
        self.step = self._text_value if is_plain else self._typed_value
        return True

    def _text_value(self) -> bool:
        """Pass a text on as it comes, without the line breaks that the format puts around it."""
        if self._is_first_piece and self.rest:
            self._is_first_piece = False
            self.take(self.rest.startswith("\n"))
        at, mark = find_marker(self.rest, ["\n" + PARAMETER_END, PARAMETER_END])
        self.add_arguments(_escaped(self.take(at)))
        if mark is None:
            return False
        self.take(len(mark))
        self.add_arguments('"')
        self.step = self._between
        return True

    def _typed_value(self) -> bool:
        at = self.rest.find(PARAMETER_END)
        if at < 0:
            return False
        value = self.take(at).removeprefix("\n").removesuffix("\n")
        self.take(len(PARAMETER_END))
        self.add_arguments(value_text(value, self._schema))
        self.step = self._between
        return True

    def _behind(self) -> bool:
        """Between the end of the function and the closing mark, which may be missing."""
        return self.close(CALL_CLOSE)

    def end(self) -> None:
        """Drop the part of a mark, or of a value that is no text, with which the arguments of a call were cut."""
        if self.step not in (self.outside, self._opened, self._name):
            self.position = len(self.held)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
