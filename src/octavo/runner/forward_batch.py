"""From a plan and the seats' arrays to the `ForwardBatch` of one step. No Python per token, none per request.

Between most steps nothing changes but the positions, so what follows from the seats alone is kept as long as the plans
hold the same arrays, and gathered block tables as long as no table changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.program.forward_batch import ForwardBatch, Int32Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.core.step import SchedulerOutput
    from octavo.runner.input_batch import InputBatch

    IndexArray = NDArray[np.intp]


@dataclass(slots=True)
class _Layout:
    """Whose rows a batch has. Shapes: T tokens, R requests."""

    seats: Int32Array
    num_scheduled_tokens: Int32Array
    query_start_loc: Int32Array
    row_requests: IndexArray
    """[T] index of the row's request; row r of a batch of single rows is request r's."""
    row_offsets: Int32Array
    """[T] rows of the same request before it."""
    token_starts: IndexArray
    """[T] where the row's seat begins in `InputBatch.flat_token_ids`."""


class ForwardBatchBuilder:
    """Builds the batches of one `InputBatch`, one after the other."""

    def __init__(self, inputs: InputBatch) -> None:
        self._inputs = inputs
        self._layout: _Layout | None = None
        self._block_tables: list[Int32Array] = []
        """Of the layout's seats, as of `_tables_version`."""
        self._tables_version = -1

    def build(self, plan: SchedulerOutput) -> ForwardBatch:
        """Return the flat batch of `plan`, request by request, each one's tokens in order.

        Mutates: self, which keeps what the next plan may have in common with this one.
        """
        layout, inputs, computed = self._layout, self._inputs, plan.num_computed_tokens
        if (
            layout is None
            or layout.seats is not plan.seats
            or layout.num_scheduled_tokens is not plan.num_scheduled_tokens
        ):
            layout = self._layout = _lay_out(plan, inputs)
            self._tables_version = -1
        if self._tables_version != inputs.tables_version:
            self._tables_version = inputs.tables_version
            self._block_tables = inputs.gather_tables(plan.seats)
        if len(layout.row_requests) == len(computed):
            positions = computed
        else:
            positions = computed.take(layout.row_requests) + layout.row_offsets
        batch = ForwardBatch(
            token_ids=inputs.flat_token_ids.take(layout.token_starts + positions),
            positions=positions,
            query_start_loc=layout.query_start_loc,
            seq_lens=computed + plan.num_scheduled_tokens,
            block_tables=self._block_tables,
        )
        if plan.state_saves:
            saves = [(save.request, save.group, save.position, save.slot) for save in plan.state_saves]
            batch.state_saves = np.array(saves, np.int32)
        return batch


def _lay_out(plan: SchedulerOutput, inputs: InputBatch) -> _Layout:
    """Return whose rows the batch of `plan` has."""
    scheduled = plan.num_scheduled_tokens
    query_start_loc = np.zeros(len(plan.seats) + 1, np.int32)
    np.cumsum(scheduled, out=query_start_loc[1:])
    row_requests = np.repeat(np.arange(len(plan.seats)), scheduled)
    row_seats = plan.seats[row_requests].astype(np.intp)
    return _Layout(
        plan.seats,
        scheduled,
        query_start_loc,
        row_requests,
        np.arange(len(row_requests), dtype=np.int32) - query_start_loc[row_requests],
        row_seats * inputs.token_ids.shape[1],
    )
