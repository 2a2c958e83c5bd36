"""Sums of the hidden states of requests that are pooled: by seat, carried from step to step until the prompt ends.

Rows are added one after the other in order of position, in float64, so a sum does not show where its prompt was cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.runner.lazy_memory import lazy_zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.core.step import SchedulerOutput, SeatAssignment
    from octavo.pooling_params import PoolingType

    Int32Array = NDArray[np.int32]
    Float64Array = NDArray[np.float64]


_NO_ROWS = np.empty(0, np.int32)


class HiddenSums:
    """One sum for each seat, of which only those of pooled requests mean something."""

    def __init__(self, max_num_seqs: int, hidden_size: int) -> None:
        self.values: Float64Array = lazy_zeros((max_num_seqs, hidden_size), np.float64)
        """[seats, E]"""
        self._pooled: dict[int, tuple[PoolingType, int]] = {}
        """Per seat of a pooled request, how, and the length of its prompt."""

    def assign(self, assignment: SeatAssignment) -> None:
        """Take over a request; its sum begins anew."""
        self.release(assignment.seat)
        if assignment.pooling is not None:
            self._pooled[assignment.seat] = (assignment.pooling, assignment.prompt_len)
            self.values[assignment.seat] = 0.0

    def release(self, seat: int) -> None:
        """Forget a request."""
        self._pooled.pop(seat, None)

    def rows_of(self, plan: SchedulerOutput) -> tuple[Int32Array, Int32Array]:
        """Return the rows of a step that are to be added up, in order, and the seat of each."""
        if not self._pooled:
            return _NO_ROWS, _NO_ROWS
        rows: list[int] = []
        seats: list[int] = []
        end = 0
        for seat, start, count in _members(plan):
            end += count
            pooling, prompt_len = self._pooled.get(seat, (None, 0))
            if pooling is None or (pooling == "last" and start + count < prompt_len):
                continue
            first = end - count if pooling == "mean" else end - 1
            rows += range(first, end)
            seats += [seat] * (end - first)
        return np.array(rows, np.int32), np.array(seats, np.int32)

    def completed_by(self, plan: SchedulerOutput) -> list[Float64Array]:
        """Return copies of the sums that a step completed, in the order of its requests."""
        return [
            self.values[seat].copy()
            for seat, start, count in (_members(plan) if self._pooled else ())
            if seat in self._pooled and start + count == self._pooled[seat][1]
        ]


def _members(plan: SchedulerOutput) -> zip[tuple[int, int, int]]:
    return zip(plan.seats.tolist(), plan.num_computed_tokens.tolist(), plan.num_scheduled_tokens.tolist(), strict=True)
