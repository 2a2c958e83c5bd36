"""Waiting requests in the order in which they will be admitted.

One heap serves both policies, because the order is that of `Request.rank`. A preempted request keeps its rank, so it
comes back before all that arrived after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.request import Request


class RequestQueue:
    """A priority queue with removal from the middle."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], int, Request]] = []
        self._members: set[Request] = set()
        """Heap entries of others are stale; they are dropped when they come up."""
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """Iterate in order of rank."""
        return iter(sorted(self._members, key=lambda request: request.rank))

    def push(self, request: Request) -> None:
        """Add `request`. Mutates: the queue."""
        assert request not in self._members, f"request {request.request_id} waits already"
        self._members.add(request)
        self._num_pushed += 1
        heapq.heappush(self._heap, (request.rank, self._num_pushed, request))

    def peek(self) -> Request | None:
        """Return the first request without removing it.

        Mutates: the heap, from which stale entries are dropped.
        """
        while self._heap and self._heap[0][2] not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def remove(self, request: Request) -> None:
        """Take `request` out, wherever it is. Mutates: the queue."""
        self._members.remove(request)
