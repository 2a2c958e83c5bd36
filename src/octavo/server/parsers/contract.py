"""What parsers of a model's output speak to those who write answers: parts, and the message that they come to.

A parser is pushed a completion's text in pieces and returns parts. The answer that is not streamed is one push of the
whole text; so both say the same, whatever the pieces were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Text of the thought before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A tool call begins."""

    index: int
    """Of the call in its message, from 0."""
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """More of a call's arguments; all together are JSON text, unless the output was cut."""

    index: int
    text: str


Part = TextPart | ReasoningPart | CallPart | ArgumentsPart


class OutputParser(Protocol):
    """Reads one completion. Never raises: what turns out to be no tool call is text."""

    def push(self, text: str) -> list[Part]:
        """Return what is new with more of the output. A marker may be torn anywhere."""
        ...

    def finish(self) -> list[Part]:
        """Return what was held back, after the last of the output."""
        ...


@dataclass(slots=True)
class ParsedCall:
    """One tool call of a message."""

    call_id: str
    name: str
    arguments: str = ""
    """JSON text."""


@dataclass(slots=True)
class ParsedMessage:
    """What all parts of a completion come to."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)


def gather(parts: Iterable[Part]) -> ParsedMessage:
    """Return the message that parts make."""
    message = ParsedMessage()
    for part in parts:
        if isinstance(part, TextPart):
            message.content += part.text
        elif isinstance(part, ReasoningPart):
            message.reasoning += part.text
        elif isinstance(part, CallPart):
            message.calls.append(ParsedCall(part.call_id, part.name))
        else:
            message.calls[part.index].arguments += part.text
    return message


def parse_whole(parser: OutputParser, text: str) -> ParsedMessage:
    """Return the message of an output that is complete."""
    return gather([*parser.push(text), *parser.finish()])
