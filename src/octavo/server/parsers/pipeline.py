"""Puts the parsers of one completion together: first the thought, then calls and text."""

from __future__ import annotations

from octavo.server.parsers.contract import ArgumentsPart, CallPart, OutputParser, Part, ReasoningPart, TextPart


class PlainText:
    """Everything is text."""

    def push(self, text: str) -> list[Part]:
        """Return the text."""
        return [TextPart(text)] if text else []

    def finish(self) -> list[Part]:
        """Return nothing."""
        return []


class Pipeline:
    """Reads one completion.

    Args:
        thoughts: gives thoughts as `ReasoningPart`, and what follows as `TextPart`; None where the model has none.
        answer: reads what follows.
        max_calls: calls beyond so many are dropped.
    """

    def __init__(
        self, thoughts: OutputParser | None, answer: OutputParser, *, max_calls: int | None, shows_reasoning: bool
    ) -> None:
        self._thoughts = thoughts
        self._answer = answer
        self._max_calls = max_calls
        self._shows_reasoning = shows_reasoning

    def push(self, text: str) -> list[Part]:
        """Return what is new with more of the output."""
        return self._kept(self._read(self._thoughts.push(text)) if self._thoughts else self._answer.push(text))

    def finish(self) -> list[Part]:
        """Return what was held back."""
        held = self._read(self._thoughts.finish()) if self._thoughts else []
        return self._kept(held + self._answer.finish())

    def _read(self, parts: list[Part]) -> list[Part]:
        read: list[Part] = []
        for part in parts:
            read += self._answer.push(part.text) if isinstance(part, TextPart) else [part]
        return read

    def _kept(self, parts: list[Part]) -> list[Part]:
        return [part for part in parts if self._is_kept(part)]

    def _is_kept(self, part: Part) -> bool:
        if isinstance(part, ReasoningPart):
            return self._shows_reasoning
        if isinstance(part, (CallPart, ArgumentsPart)) and self._max_calls is not None:
            return part.index < self._max_calls
        return True
