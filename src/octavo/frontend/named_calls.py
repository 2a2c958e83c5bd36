"""Calls of `AsyncLLM.generate` by their id, from the first moment on: an id is one call's, which may be ended early.

Until its prompt is queued, a call may wait for a pause to end, a thread, a grammar: all that is one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from octavo.errors import RequestError

Result = TypeVar("Result")

_TURNS_OF_A_CLOSE = 2
"""Of the event loop, until a generator that its reader has dropped is closed: one makes a task of it, one runs that."""


class NamedCalls:
    """Those that have not ended. For the event loop's thread only."""

    def __init__(self) -> None:
        self._calls: dict[str, NamedCall] = {}

    async def open(self, request_id: str) -> NamedCall:
        """Take an id until the call is closed.

        Raises: `RequestError` if it is in use.
        """
        for _ in range(_TURNS_OF_A_CLOSE):
            if request_id in self._calls:
                await asyncio.sleep(0)
        if request_id in self._calls:
            raise RequestError(f"request id {request_id!r} is in use.", parameter="request_id", value=request_id)
        return NamedCall(self._calls, request_id)

    def end_preparations(self, request_ids: Iterable[str] | None = None) -> None:
        """End what is not queued yet, of these or of all calls. Unknown ids are ignored."""
        for request_id in list(self._calls) if request_ids is None else request_ids:
            call = self._calls.get(request_id)
            if call is not None:
                call.end_preparation()


class NamedCall:
    """One call, which has its id until `close`, or the end of the context."""

    def __init__(self, calls: dict[str, NamedCall], request_id: str) -> None:
        self._calls = calls
        self._request_id = request_id
        self._preparation: asyncio.Task[Any] | None = None
        self._is_ended = False
        calls[request_id] = self

    async def prepare(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Do what comes before the request is queued; return what came of it, or None if it was ended."""
        task = self._preparation = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task])  # not the task itself, whose end would look like that of who waits
            return None if self._is_ended else task.result()
        finally:
            self._preparation = None
            task.cancel()

    def end_preparation(self) -> None:
        """End what `prepare` does, if it does something."""
        if self._preparation is not None:
            self._is_ended = True
            self._preparation.cancel()

    def close(self) -> None:
        """Give the id back. Idempotent."""
        if self._calls.get(self._request_id) is self:
            del self._calls[self._request_id]

    def __enter__(self) -> NamedCall:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
