"""Waiting requests in the order in which they will be admitted.

One list serves both policies, because the order is that of `Request.rank`. A preempted request keeps its rank, so it
comes back before all that arrived after it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.request import Request

_rank = attrgetter("rank")


class RequestQueue:
    """A priority queue with removal from the middle."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        """In order of rank."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Iterate in order of rank."""
        return iter(self._requests)

    def push(self, request: Request) -> None:
        """Add `request`. Mutates: the queue."""
        insort(self._requests, request, key=_rank)

    def peek(self) -> Request | None:
        """Return the first request without removing it."""
        return self._requests[0] if self._requests else None

    def remove(self, request: Request) -> None:
        """Take `request` out, wherever it is. Mutates: the queue."""
        del self._requests[self._requests.index(request, bisect_left(self._requests, request.rank, key=_rank))]
