"""What the data plane remembers between steps: per seat, the token ids, block tables and sampling state of a request.

The control plane sends only changes; this file applies them. It decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.runner.hidden_sums import HiddenSums
from octavo.runner.lazy_memory import lazy_zeros
from octavo.sampling.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from octavo.core.step import SchedulerOutput, SeatAssignment

    Int32Array = NDArray[np.int32]


class InputBatch:
    """Arrays by seat, 0 .. max_num_seqs - 1.

    Shapes:
        token_ids     [seats, max_model_len]                  prompt, then output
        block_tables  per group, [seats, ceil(max_model_len / block_size)]; of a state group [seats, 1]
        flat_token_ids        the same in one dimension
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_sizes: Sequence[int | None],
        vocab_size: int,
        hidden_size: int,
    ) -> None:
        """Make seats that hold nothing.

        Args:
            block_sizes: per group, tokens of a block; None: a state group.
        """
        self.block_sizes = tuple(block_sizes)
        self.token_ids: Int32Array = lazy_zeros((max_num_seqs, max_model_len), np.int32)
        self.block_tables: list[Int32Array] = [
            lazy_zeros((max_num_seqs, -(-max_model_len // block_size) if block_size else 1), np.int32)
            for block_size in self.block_sizes
        ]
        self.flat_token_ids = self.token_ids.reshape(-1)
        self.tables_version = 0
        """Changes whenever a block table does."""
        self.sampler = Sampler(max_num_seqs, vocab_size)
        self.hidden_sums = HiddenSums(max_num_seqs, hidden_size)
        self._num_blocks = np.zeros((len(self.block_sizes), max_num_seqs), np.int32)

    def apply(self, plan: SchedulerOutput) -> None:
        """Take over what changed since the last plan, in the order that `SchedulerOutput` documents."""
        self.tables_version += bool(plan.assigned or plan.replaced or plan.appended)
        for seat in plan.released_seats:
            self.sampler.release(seat)
            self.hidden_sums.release(seat)
        for assignment in plan.assigned:
            self._assign(assignment)
        for replace in plan.replaced:
            self.block_tables[replace.group][replace.seat, replace.index] = replace.block_id
        for append in plan.appended:
            start = self._num_blocks[append.group, append.seat]
            end = start + len(append.block_ids)
            self.block_tables[append.group][append.seat, start:end] = append.block_ids
            self._num_blocks[append.group, append.seat] = end

    def gather_tables(self, seats: Int32Array) -> list[Int32Array]:
        """Return per group the block tables [R, blocks of the longest] of these seats, R at least 1."""
        return [
            table[seats, : int(counts[seats].max())]
            for table, counts in zip(self.block_tables, self._num_blocks, strict=True)
        ]

    def append_tokens(self, seats: Int32Array, positions: Int32Array, token_ids: Int32Array) -> None:
        """Write sampled tokens, one per seat, at their positions."""
        self.token_ids[seats, positions] = token_ids

    def _assign(self, assignment: SeatAssignment) -> None:
        seat = assignment.seat
        self.token_ids[seat, : len(assignment.token_ids)] = assignment.token_ids
        for group, block_ids in enumerate(assignment.block_ids):
            self.block_tables[group][seat, : len(block_ids)] = block_ids
            self._num_blocks[group, seat] = len(block_ids)
        self.sampler.assign(seat, assignment.params, assignment.prompt_len, assignment.seed)
        self.hidden_sums.assign(assignment)
