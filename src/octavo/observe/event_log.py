"""The last events of an engine with the times at which they were told: a ring that forgets the oldest."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from octavo.observe.events import Event

EVENTS_KEPT = 65_536


class RecordedEvent(NamedTuple):
    """An event and its time."""

    at: float
    """Monotonic seconds, of the same clock as `RequestOutput.metrics`."""
    event: Event


class EventLog:
    """An event sink. Any thread may write and read: an append, and a copy of the ring, are single operations.

    Args:
        max_events: kept at most.
        clock: seconds of a monotonic clock.
    """

    enabled = wants_steps = wants_blocks = True

    def __init__(self, max_events: int = EVENTS_KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self._ring: deque[tuple[float, Event]] = deque(maxlen=max_events)
        self._clock = clock

    def emit(self, event: Event) -> None:
        """Take one event."""
        self._ring.append((self._clock(), event))

    def entries(self) -> list[RecordedEvent]:
        """Return what is kept, the oldest first."""
        return [RecordedEvent(at, event) for at, event in self._ring.copy()]
