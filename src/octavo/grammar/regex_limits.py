"""How long a regular expression is when its repetitions are written out: what it costs, known before it is compiled."""

from __future__ import annotations

import re

MAX_WRITTEN_OUT = 8_000
"""Characters. While a run of 8,000 is forced, each mask takes 3 ms, and a step waits for its masks."""

_COUNT = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")
_LONG_ESCAPE = re.compile(r"\\[pPxuU]\{[^}]*\}")


def check_regex(pattern: str) -> None:
    """Raise ValueError for an expression that is too long when written out, or that repeats a repetition.

    Other faults are left to whoever compiles it.
    """
    size = written_out_size(pattern)
    if size > MAX_WRITTEN_OUT:
        raise ValueError(
            f"the regular expression is {size} characters long with its repetitions written out; at most "
            f"{MAX_WRITTEN_OUT} can be served"
        )


def written_out_size(pattern: str) -> int:
    """Return how many characters an expression has with {n} and {n,m} written out, whatever its branches are.

    Raises: ValueError for `**` and the like: some read that as a repetition, some as something else.
    """
    outer: list[int] = []
    """Sizes of the open groups so far."""
    size = last = 0
    """Of the innermost open group without its last item; of that item."""
    repeats = False
    """The last item is a repetition."""
    position = 0
    while position < len(pattern):
        char, start = pattern[position], position
        position += 1
        count = _COUNT.match(pattern, start) if char == "{" else None
        if char in "*+" or count:
            if repeats:
                raise ValueError(f"the regular expression repeats a repetition at {pattern[start - 1 : start + 5]!r}")
            repeats = True
            if count:
                position = count.end()
                last *= max(int(count[1]), int(count[2] or 0), 1)
            continue
        if char == "?":
            continue
        repeats = False
        size += last
        if char == "(":
            outer.append(size)
            size = last = 0
            position += 2 if pattern.startswith("?:", position) else pattern.startswith("?", position)
        elif char == ")" and outer:
            size, last = outer.pop(), size
        else:
            last = 1
            position = _atom_end(pattern, start)
    return sum(outer) + size + last


def _atom_end(pattern: str, start: int) -> int:
    """Return where the escape, the character class or the character at `start` ends."""
    if pattern[start] == "\\":
        escape = _LONG_ESCAPE.match(pattern, start)
        return escape.end() if escape else start + 2
    if pattern[start] != "[":
        return start + 1
    position = start + 1 + pattern.startswith("^", start + 1)
    position += pattern.startswith("]", position)
    depth = 1
    while position < len(pattern) and depth:
        char = pattern[position]
        depth += (char == "[") - (char == "]")
        position += 2 if char == "\\" else 1
    return position
