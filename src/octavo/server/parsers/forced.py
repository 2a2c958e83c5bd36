"""Reads `[{"name": …, "parameters": {…}}, …]`: what a grammar makes of a request that demands a call."""

from __future__ import annotations

from octavo.server.parsers.call_stream import CallArray, MakeId


class ForcedListParser(CallArray):
    """A list, and nothing around it but white space."""

    def __init__(self, call_id: MakeId) -> None:
        super().__init__(call_id)
        self.step = self._begin

    def outside(self) -> bool:
        """Show what is behind the list."""
        self.show(self.take(len(self.rest)))
        return False

    def _begin(self) -> bool:
        start = self.rest.lstrip()
        if not start:
            return False
        if not start.startswith("["):
            self.step = self.outside
            return True
        self.begin_array(self.take_space() + self.take(1))
        return True
