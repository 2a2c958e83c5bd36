"""Where values live: one arena for all of them, planned at load from who writes and reads what, and when.

Time is counted in stages: while one runs, its rows are at different ops in different threads, so two buffers that share
a stage never share memory. `lowering.py` says when a buffer is used; this file only places.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT_BYTES = 64
"""A cache line, and the vectors of the widest kernels."""
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer's size, and the stages first .. last in which it is used, both included."""

    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Byte offset of each buffer, and the size of the arena that holds them."""

    offsets: tuple[int, ...]
    num_bytes: int


def plan_arena(intervals: Sequence[Interval]) -> Plan:
    """Place buffers in the order in which they are first used, each in the tightest gap between those in use."""
    offsets = [0] * len(intervals)
    placed: list[tuple[int, int, int]] = []
    """(offset, end, last stage) of the buffers in use, by offset."""
    total = 0
    for index in sorted(range(len(intervals)), key=lambda i: (intervals[i].first, -intervals[i].num_bytes)):
        interval = intervals[index]
        placed = [buffer for buffer in placed if buffer[2] >= interval.first]
        size = -(-interval.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offset = _tightest_gap(placed, size)
        offsets[index] = offset
        insort(placed, (offset, offset + size, interval.last))
        total = max(total, offset + size)
    return Plan(tuple(offsets), max(total, ALIGNMENT_BYTES))


def _tightest_gap(placed: Sequence[tuple[int, int, int]], size: int) -> int:
    """Return the start of the smallest gap that holds `size` bytes; behind the last buffer if there is none."""
    best, best_size = -1, 0
    end = 0
    for offset, buffer_end, _ in placed:
        gap = offset - end
        if gap >= size and (best < 0 or gap < best_size):
            best, best_size = end, gap
        end = max(end, buffer_end)
    return best if best >= 0 else end


def row_stride(width: int, *, element_bytes: int, multiple: int) -> int:
    """Return elements from one row to the next: `width` padded to a multiple, and off multiples of a page.

    Rows that are whole pages apart fall into the same few cache sets.
    """
    stride = -(-width // multiple) * multiple
    return stride + multiple if stride * element_bytes % PAGE_BYTES == 0 else stride
