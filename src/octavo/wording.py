"""Numbers with their nouns, for messages and summaries."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return "1 token", "2,048 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
