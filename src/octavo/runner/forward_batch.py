"""From a plan and the seats' arrays to the `ForwardBatch` of one step. No Python per token, none per request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.program.forward_batch import ForwardBatch

if TYPE_CHECKING:
    from octavo.core.step import SchedulerOutput
    from octavo.runner.input_batch import InputBatch


def build_forward_batch(plan: SchedulerOutput, inputs: InputBatch) -> ForwardBatch:
    """Return the flat batch of `plan`, request by request, each one's tokens in order.

    Shapes: T tokens, R requests:
        token_ids, positions [T], query_start_loc [R + 1], seq_lens [R];
        per group block_tables [R, blocks of the longest request], slot_mapping [T].
    """
    seats, computed, scheduled = plan.seats, plan.num_computed_tokens, plan.num_scheduled_tokens
    num_requests = len(seats)
    query_start_loc = np.zeros(num_requests + 1, np.int32)
    np.cumsum(scheduled, out=query_start_loc[1:])
    num_tokens = int(query_start_loc[-1])
    seq_lens = computed + scheduled
    if num_tokens == num_requests:
        row_seats, positions = seats, computed
    else:
        row_seats = np.repeat(seats, scheduled)
        positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(computed - query_start_loc[:-1], scheduled)
    longest = int(seq_lens.max())
    block_tables, slot_mapping = [], []
    for table, block_size in zip(inputs.block_tables, inputs.block_sizes, strict=True):
        block_tables.append(table[seats, : -(-longest // block_size)])
        blocks, offsets = np.divmod(positions, np.int32(block_size))
        slot_mapping.append(table[row_seats, blocks].astype(np.int64) * block_size + offsets)
    return ForwardBatch(
        token_ids=inputs.token_ids[row_seats, positions],
        positions=positions,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=block_tables,
        slot_mapping=slot_mapping,
    )
