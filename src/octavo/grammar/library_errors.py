"""What llguidance says of a fault, in a line for whoever wrote the grammar."""

from __future__ import annotations

_STATE_MARK = "<non-verbose/>"
"""In messages, where the state would be."""
_NO_TEXT = "NoExtension"
"""What the library says where nothing can follow and the grammar is not complete."""
_MAX_CHARS = 300


def error_line(text: str) -> str:
    """Return what went wrong, without the library's dump of its state."""
    line = " ".join(text.replace(_STATE_MARK, "").split())
    return f"it matches no text ({line})" if line.startswith(_NO_TEXT) else line[:_MAX_CHARS] or "it is too complex"
