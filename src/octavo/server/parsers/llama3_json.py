"""Reads `{"name": …, "parameters": {…}}`, several with `;` between, also behind `<|python_tag|>`: Llama 3.1 and on.

Source: the chat template of meta-llama/Llama-3.1-8B-Instruct.
"""

from __future__ import annotations

from collections.abc import Collection

from octavo.server.parsers.call_stream import CallStream, MakeId
from octavo.server.parsers.markers import find_marker

TAG = "<|python_tag|>"


class Llama3JsonParser(CallStream):
    """A call has no marks of its own, so only an object that names a known tool is one, and only at the beginning.

    Args:
        names: of the tools.
    """

    def __init__(self, call_id: MakeId, names: Collection[str]) -> None:
        super().__init__(call_id)
        self._names = names
        self.step = self._begin

    def outside(self) -> bool:
        """Show text up to the tag."""
        at, mark = find_marker(self.rest, [TAG])
        self.show(self.take(at))
        if mark is None:
            return False
        self.given_back = self.take(len(mark))
        self.begin_object(needs_arguments=True)
        self.step = self._inside
        return True

    def _begin(self) -> bool:
        start = self.rest.lstrip()
        if not start:
            return False
        if not start.startswith("{"):
            self.step = self.outside
            return True
        self._expect_known(self.take_space())
        return True

    def _expect_known(self, given_back: str) -> None:
        self.given_back = given_back
        self.begin_object(accepts=self._names.__contains__, needs_arguments=True)
        self.step = self._inside

    def _inside(self) -> bool:
        return self.read_object(self._behind)

    def _behind(self) -> bool:
        start = self.rest.lstrip()
        separated = start.removeprefix(";").lstrip()
        if not separated:
            return False
        if not separated.startswith("{"):
            self.step = self.outside
            return True
        self._expect_known(self.take(len(self.rest) - len(separated)))
        return True

    def end(self) -> None:
        """Drop a separator that nothing follows."""
        if self.step == self._behind:
            self.position = len(self.held)
