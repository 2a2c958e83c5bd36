"""What parsers of tool calls are made of: text that is held until it is understood, and steps that understand it."""

from __future__ import annotations

from collections.abc import Callable

from octavo.server.parsers.contract import ArgumentsPart, CallPart, Part
from octavo.server.parsers.json_calls import CallReader
from octavo.server.parsers.markers import TextHolder

MakeId = Callable[[int], str]
"""Takes the index of a call in its message."""


class CallStream:
    """Base of parsers: `step` is called until it neither takes text nor changes, and held text is text in the end.

    Args:
        call_id: makes ids.
    """

    def __init__(self, call_id: MakeId) -> None:
        self.held = ""
        """Not yet understood."""
        self.position = 0
        """Of `held`, how much was taken."""
        self.num_calls = 0
        self.parts: list[Part] = []
        self.step: Callable[[], bool] = self.outside
        """Takes from `held`; returns whether to go on."""
        self.given_back = ""
        """What a call that was not told began with; text, if it comes to nothing."""
        self.reader: CallReader | None = None
        self._make_id = call_id
        self._text = TextHolder()

    def outside(self) -> bool:
        """Read what is no call."""
        raise NotImplementedError

    def push(self, text: str) -> list[Part]:
        """Return what is new with more of the output."""
        self.held = self.held[self.position :] + text
        self.position = 0
        self.parts = []
        while self.step():
            pass
        return self.parts

    def finish(self) -> list[Part]:
        """Return what was held back: the output has ended, so it is no call."""
        self.parts = []
        self.end()
        self.give_back(self.held[self.position :])
        self.held, self.position = "", 0
        self.parts += self._text.finish()
        return self.parts

    def end(self) -> None:
        """Do what the end of the output means to an open call."""

    @property
    def rest(self) -> str:
        """What was not taken yet."""
        return self.held[self.position :]

    def take(self, num_chars: int) -> str:
        """Take text from the front."""
        taken = self.held[self.position : self.position + num_chars]
        self.position += num_chars
        return taken

    def take_space(self) -> str:
        """Take white space from the front."""
        rest = self.rest
        return self.take(len(rest) - len(rest.lstrip()))

    def show(self, text: str) -> None:
        """Pass text on."""
        if text:
            self.parts += self._text.push(text)

    def give_back(self, text: str = "") -> None:
        """Pass on as text what was taken for a call, and what follows."""
        begun, self.given_back = self.given_back, ""
        if self.reader is not None and not self.reader.has_begun:
            begun += self.reader.raw
        self.reader = None
        self.show(begun + text)

    def begin_object(self, *, accepts: Callable[[str], bool] | None = None, needs_arguments: bool = False) -> None:
        """Expect a call's object next. Arguments are those of `CallReader`."""
        self.reader = CallReader(
            self.num_calls, self._make_id(self.num_calls), accepts=accepts, needs_arguments=needs_arguments
        )

    def read_object(self, following: Callable[[], bool]) -> bool:
        """Read the call's object on, as a step does. A call that is told is one from here on.

        Args:
            following: the step behind the object. Behind what turns out to be no call it is `outside`.
        """
        assert self.reader is not None, "expected before"
        had_begun = self.reader.has_begun
        end, parts = self.reader.read(self.held, self.position)
        self.position = end
        if self.reader.has_begun and not had_begun:
            self.tell()
        self.parts += parts
        state = self.reader.state
        if state == "reading":
            return False
        if state == "failed":
            self.give_back()
        self.reader = None
        self.step = self.outside if state == "failed" else following
        return True

    def close(self, mark: str) -> bool:
        """Step over white space and a closing mark, which may be missing; return whether there is text enough."""
        text = self.rest.lstrip()
        if text.startswith(mark):
            self.take_space()
            self.take(len(mark))
        elif mark.startswith(text):
            return False
        self.step = self.outside
        return True

    def fail(self) -> bool:
        """Give back what turned out to be no call, and go on behind it."""
        self.give_back()
        self.step = self.outside
        return True

    def tell(self) -> None:
        """Count a call that is being told."""
        self.num_calls += 1
        self.given_back = ""
        self._text.call()

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """Tell a call."""
        self.parts.append(CallPart(self.num_calls, call_id or self._make_id(self.num_calls), name))
        self.tell()

    def add_arguments(self, text: str) -> None:
        """Pass on more of the arguments of the call that was told last."""
        if text:
            self.parts.append(ArgumentsPart(self.num_calls - 1, text))


class CallArray(CallStream):
    """Base of parsers of forms with calls in a JSON list."""

    def _next_item(self) -> bool:
        """Read another call, behind a comma, or the closing bracket."""
        space = self.take_space()
        if not self.rest:
            self.position -= len(space)
            return False
        char = self.take(1)
        if char == ",":
            self.given_back = space + char
            self.begin_object()
            self.step = self._read_item
        else:
            self.step = self.outside
            if char != "]":
                self.position -= 1
        return True

    def begin_array(self, given_back: str) -> None:
        """Read calls from here on: the bracket was taken."""
        self.given_back = given_back
        self.begin_object()
        self.step = self._read_item

    def _read_item(self) -> bool:
        return self.read_object(self._next_item)
