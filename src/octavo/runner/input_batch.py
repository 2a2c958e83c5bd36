"""What the data plane remembers between steps: per seat, the token ids, block tables and sampling state of a request.

The control plane sends only changes; this file applies them. It decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.program.forward_batch import ForwardBatch, SeatTables
from octavo.runner.hidden_sums import HiddenSums
from octavo.runner.lazy_memory import lazy_zeros
from octavo.sampling.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from octavo.core.step import SchedulerOutput, SeatAssignment

    Int32Array = NDArray[np.int32]


class InputBatch:
    """Arrays by seat, 0 .. max_num_seqs - 1."""

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
        self.block_tables: tuple[Int32Array, ...] = tuple(
            lazy_zeros((max_num_seqs, -(-max_model_len // block_size) if block_size else 1), np.int32)
            for block_size in self.block_sizes
        )
        self._tables = SeatTables(self.token_ids, self.block_tables)
        self._token_view = memoryview(self.token_ids)  # type: ignore[arg-type]
        """For single numbers: numpy's ways to many take long for a few, with cold caches 40 µs."""
        self.sampler = Sampler(max_num_seqs, vocab_size)
        self.hidden_sums = HiddenSums(max_num_seqs, hidden_size)
        self._num_blocks = np.zeros((len(self.block_sizes), max_num_seqs), np.int32)

    def apply(self, plan: SchedulerOutput) -> None:
        """Take over what changed since the last plan, in the order that `SchedulerOutput` documents."""
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

    def batch(self, plan: SchedulerOutput) -> ForwardBatch:
        """Return the rows of a plan that was applied; they are what the seats hold, so valid until the next one is."""
        saves = [(save.request, save.group, save.position, save.slot) for save in plan.state_saves]
        return ForwardBatch(
            self._tables,
            plan.seats,
            plan.num_computed_tokens,
            plan.num_scheduled_tokens,
            np.array(saves, np.int32) if saves else None,
        )

    def append_token(self, seat: int, position: int, token_id: int) -> None:
        """Write a sampled token at its position."""
        self._token_view[seat, position] = token_id

    def _assign(self, assignment: SeatAssignment) -> None:
        seat = assignment.seat
        self.token_ids[seat, : len(assignment.token_ids)] = assignment.token_ids
        for group, block_ids in enumerate(assignment.block_ids):
            self.block_tables[group][seat, : len(block_ids)] = block_ids
            self._num_blocks[group, seat] = len(block_ids)
        self.sampler.assign(seat, assignment.params, assignment.prompt_len, assignment.seed)
        self.hidden_sums.assign(assignment)
