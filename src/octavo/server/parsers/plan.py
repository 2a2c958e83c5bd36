"""How one request's completions are to be read: which parsers, in which state they begin, and what they may find."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.server.parsers.contract import OutputParser
from octavo.server.parsers.forced import ForcedListParser
from octavo.server.parsers.formats import OutputFormat
from octavo.server.parsers.markers import CALL_OPEN
from octavo.server.parsers.pipeline import Pipeline, PlainText
from octavo.server.parsers.qwen3_coder import FUNCTION
from octavo.server.parsers.registry import make_tool_parser
from octavo.server.parsers.thoughts import CLOSE, OPEN, ThoughtParser

MakeParser = Callable[[int], OutputParser]
"""Takes the index of a completion of the request; each gets a parser of its own."""

NATIVE = "hermes"
"""The form of calls that a grammar can demand as it is: the others have marks that are no text, or no types."""
_CALL_MARKS = {"hermes": (CALL_OPEN + "\n{",), "qwen3_coder": (f"{CALL_OPEN}\n{FUNCTION}",)}
_ID_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """What is known before the prompt is rendered."""

    model: OutputFormat
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Names of the functions that may be called, with the schemas of their parameters; none where no call is read."""
    is_forced: bool = False
    """A grammar makes the output a call: in the form of Hermes if that is the model's, else as a JSON list."""
    max_calls: int | None = None
    """Calls beyond the first are dropped where this is 1."""
    shows_reasoning: bool = True
    continues: bool = False
    """The output goes on with a message that the prompt has begun."""

    def thought_state(self, prompt: str) -> str | None:
        """Return whether a thought is "open" at the end of a prompt or "possible"; None if there will be none."""
        if self.model.reasoning is None:
            return None
        if self.continues:
            return "open" if prompt.rfind(OPEN) > prompt.rfind(CLOSE) else None
        end = prompt.rstrip()
        return "open" if end.endswith(OPEN) else None if end.endswith(CLOSE) else "possible"

    def make_parsers(self, prompt: str, answer_id: str) -> MakeParser:
        """Return what makes the parser of each completion.

        Args:
            prompt: as it was rendered; it may end within a thought.
            answer_id: what the ids of calls are derived from; no two answers are to have the same.
        """
        state = self.thought_state(prompt)
        call_marks = _CALL_MARKS.get(self.model.tools or "", ()) if self.tools and not self.is_forced else ()

        def make(index: int) -> OutputParser:
            def call_id(call_index: int) -> str:
                return _call_id(f"{answer_id}:{index}:{call_index}", is_short=self.model.tools == "mistral")

            return Pipeline(
                None if state is None else ThoughtParser(is_open=state == "open", call_marks=call_marks),
                self._answer_parser(call_id),
                max_calls=self.max_calls,
                shows_reasoning=self.shows_reasoning,
            )

        return make

    def _answer_parser(self, call_id: Callable[[int], str]) -> OutputParser:
        if not self.tools:
            return PlainText()
        if self.is_forced and self.model.tools != NATIVE:
            return ForcedListParser(call_id)
        if self.model.tools is None:
            return PlainText()
        return make_tool_parser(self.model.tools, self.tools, call_id)


PLAIN = ReadingPlan(OutputFormat())
"""Everything is text."""


def _call_id(seed: str, *, is_short: bool) -> str:
    """Return an id as Mistral's templates demand, nine letters or digits, or a longer one."""
    number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=16).digest(), "big")
    letters = []
    for _ in range(9 if is_short else 20):
        number, rest = divmod(number, len(_ID_CHARS))
        letters.append(_ID_CHARS[rest])
    return "".join(letters) if is_short else "call_" + "".join(letters)
