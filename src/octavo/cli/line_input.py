"""Messages typed in a terminal: several lines if wanted, with a history from session to session."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from octavo import envs

_FENCE = '"""'
_HISTORY_LINES = 1000


def read_message(prompt: str, more: str) -> str:
    r"""Return what the user types: a line, lines that each end in \, or all between two lines of three quotes.

    Raises: EOFError at the end of the input; KeyboardInterrupt.
    """
    line = input(prompt)
    if line.strip() == _FENCE:
        return "\n".join(_fenced(more))
    lines = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = input(more)
    return "\n".join([*lines, line])


def _fenced(more: str) -> Iterator[str]:
    while (line := input(more)).strip() != _FENCE:
        yield line


@contextlib.contextmanager
def line_history() -> Iterator[None]:
    """Edit lines and recall earlier ones, as far as the terminal and Python can."""
    try:
        import readline
    except ImportError:  # Windows
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    path = envs.cache_dir() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        readline.set_history_length(_HISTORY_LINES)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
