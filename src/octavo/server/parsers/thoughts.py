"""Reads `<think>…</think>` at the beginning of an output; the prompt may have opened it already.

White space between the marks and the text is the format's: chat templates write it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.server.parsers.contract import Part, ReasoningPart, TextPart
from octavo.server.parsers.markers import find_marker

OPEN, CLOSE = "<think>", "</think>"


class ThoughtParser:
    """Gives the thought as `ReasoningPart`, all else as `TextPart`.

    Args:
        is_open: the output begins within the thought; it may say the opening mark again.
        call_marks: how calls begin, which end a thought too: models forget to close it before they call.
    """

    def __init__(self, *, is_open: bool, call_marks: Sequence[str] = ()) -> None:
        self._is_open = is_open
        self._marks = [CLOSE, *call_marks]
        self._held = ""
        self._state = self._begin
        self._has_shown = False
        """Something of the thought."""

    def push(self, text: str) -> list[Part]:
        """Return what is new with more of the output."""
        self._held += text
        parts: list[Part] = []
        state: Callable[[], list[Part]] | None = None
        while state != self._state:
            state = self._state
            parts += state()
        return parts

    def finish(self) -> list[Part]:
        """Return what was held back: a thought that was cut, or what was no mark."""
        held, self._held = self._held, ""
        if self._state == self._begin:
            return self._thought(held) if self._is_open else _text(held)
        if self._state == self._think:
            return self._thought(held)
        return []

    def _begin(self) -> list[Part]:
        """Before anything but white space."""
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._held = start[len(OPEN) :]
            self._state = self._think
        elif not OPEN.startswith(start):
            self._state = self._think if self._is_open else self._answer
        return []

    def _think(self) -> list[Part]:
        at, mark = find_marker(self._held, self._marks)
        thought, rest = self._held[:at], self._held[at:]
        if mark is not None:
            self._held = rest.removeprefix(CLOSE)
            self._state = self._answer_begins
            return self._thought(thought.rstrip())
        shown = thought.rstrip()
        self._held = thought[len(shown) :] + rest
        return self._thought(shown)

    def _thought(self, text: str) -> list[Part]:
        shown = text if self._has_shown else text.lstrip()
        self._has_shown = self._has_shown or bool(shown)
        return [ReasoningPart(shown)] if shown else []

    def _answer_begins(self) -> list[Part]:
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._answer
        return []

    def _answer(self) -> list[Part]:
        text, self._held = self._held, ""
        return _text(text)


def _text(text: str) -> list[Part]:
    return [TextPart(text)] if text else []
