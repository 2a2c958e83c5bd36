"""Words of messages and summaries: numbers with their nouns, names with their nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """Return "1 token", "2,048 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'tokens'?" for a name that is near a known one, else nothing."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def check_keywords(cls: type, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `TypeError` with a hint for a keyword that a class does not know, before `__init__` does without one."""
    known = frozenset(known)
    for name in given:
        if name not in known:
            hint = nearest_hint(name, known)
            raise TypeError(f"{cls.__name__} got an unexpected keyword argument {name!r}{hint}")
