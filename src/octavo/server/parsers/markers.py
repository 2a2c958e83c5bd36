"""Finds markers in text that comes in pieces: a marker may be torn, so what could begin one is held back."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.server.parsers.contract import Part, TextPart

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
"""Around a call, in several forms."""


def find_marker(text: str, markers: Sequence[str]) -> tuple[int, str | None]:
    """Return where the first marker begins, and which it is.

    Without one: where what may be the beginning of one begins, at the text's end, and None.
    """
    found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    if found:
        return min(found, key=lambda entry: (entry[0], -len(entry[1])))
    return min(_torn(text, marker) for marker in markers), None


def _torn(text: str, marker: str) -> int:
    """Return where the longest proper prefix of a marker that ends the text begins; the text's length if none does."""
    start = max(0, len(text) - len(marker) + 1)
    while start < len(text) and not marker.startswith(text[start:]):
        start += 1
    return start


class TextHolder:
    """Text between calls: whitespace at its end is held back, and dropped where a call follows.

    What surrounds a call is its format's; white space that text follows is the text's.
    """

    def __init__(self) -> None:
        self._space = ""
        self._after_call = False

    def push(self, text: str) -> list[Part]:
        """Return what can be shown of more text."""
        kept = text.rstrip()
        if not kept:
            self._space += text
            return []
        shown, self._space = self._space + kept, text[len(kept) :]
        self._after_call = False
        return [TextPart(shown)]

    def call(self) -> None:
        """Tell that a call begins here."""
        self._space = ""
        self._after_call = True

    def finish(self) -> list[Part]:
        """Return the white space at the end of a text, if it is one's."""
        shown = "" if self._after_call else self._space
        self._space = ""
        return [TextPart(shown)] if shown else []
