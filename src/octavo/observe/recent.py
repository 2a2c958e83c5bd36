"""The last values of something that is measured all the time: percentiles of the recent past, when somebody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.observe.snapshot import LatencyView


class RecentValues:
    """A ring that forgets the oldest. One thread adds, any reads: adding and copying are single operations.

    Args:
        max_values: kept at most.
    """

    __slots__ = ("_ring",)

    def __init__(self, max_values: int) -> None:
        self._ring: deque[float] = deque(maxlen=max_values)

    def add(self, value: float) -> None:
        """Take one value."""
        self._ring.append(value)

    def add_times(self, value: float, count: int) -> None:
        """Take a value `count` times."""
        self._ring.extend(repeat(value, count))

    def view(self) -> LatencyView:
        """Return how the values are spread."""
        from octavo.observe.snapshot import LatencyView  # for those who look; a start does without

        values = sorted(self._ring.copy())
        return LatencyView(len(values), *(_percentile(values, share) for share in (50, 90, 99) if values))


def _percentile(values: Sequence[float], share: int) -> float:
    """Return the smallest value that at least `share` per cent of the sorted values do not exceed (nearest rank)."""
    return values[-(-share * len(values) // 100) - 1]
