"""Reads `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5, Qwen 3, Granite 4.

Source: the chat templates of NousResearch/Hermes-2-Pro-Llama-3-8B and Qwen/Qwen3-0.6B.
"""

from __future__ import annotations

from octavo.server.parsers.call_stream import CallStream
from octavo.server.parsers.markers import CALL_CLOSE, CALL_OPEN, find_marker


class HermesParser(CallStream):
    """Any number of calls, with text around them; the last closing mark may be missing."""

    def outside(self) -> bool:
        """Show text up to the next mark."""
        at, mark = find_marker(self.rest, [CALL_OPEN])
        self.show(self.take(at))
        if mark is None:
            return False
        self.given_back = self.take(len(mark))
        self.begin_object()
        self.step = self._inside
        return True

    def _inside(self) -> bool:
        return self.read_object(self._behind)

    def _behind(self) -> bool:
        """Between the object and the closing mark."""
        return self.close(CALL_CLOSE)

    def end(self) -> None:
        """Drop white space, or a part of the closing mark, behind a call."""
        if self.step == self._behind:
            self.position = len(self.held)
