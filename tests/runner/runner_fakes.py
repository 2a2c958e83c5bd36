"""A program without a model, and short ways to write plans."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.core.step import SchedulerOutput, SeatAssignment
from octavo.program.forward_batch import ForwardBatch, SampleBatch, SampleOutput
from octavo.sampling_params import SamplingParams

VOCAB = 100


class FakeProgram:
    """Records what it is given; a row's token is a function of its seed and position alone."""

    def __init__(self) -> None:
        self.forward: ForwardBatch | None = None
        self.sampling: SampleBatch | None = None
        self.num_runs = 0
        self.num_cancels = 0
        self.is_closed = False
        self.run_error: BaseException | None = None
        self.sample_error: BaseException | None = None
        self.bad_rows: list[int] = []

    def run(self, batch: ForwardBatch) -> float:
        if self.run_error is not None:
            raise self.run_error
        self.forward = batch
        self.num_runs += 1
        return 0.25

    def sample(self, batch: SampleBatch) -> SampleOutput:
        if self.sample_error is not None:
            raise self.sample_error
        self.sampling = batch
        num_rows = len(batch.rows)
        width = max(0, int(batch.num_logprobs.max(initial=0)))
        status = np.zeros(num_rows, np.int32)
        status[self.bad_rows] = 1
        chosen = np.array([fake_token(s, p) for s, p in zip(batch.seed, batch.position, strict=True)], np.int32)
        columns = np.arange(width, dtype=np.int32)
        return SampleOutput(
            token_ids=np.where(batch.forced_token >= 0, batch.forced_token, chosen).astype(np.int32),
            status=status,
            rank=np.arange(1, num_rows + 1, dtype=np.int32),
            logprob=-batch.rows.astype(np.float32),
            top_ids=batch.rows[:, None] + columns,
            top_logprobs=(-batch.rows[:, None] - 0.5 * columns).astype(np.float32),
            native_seconds=0.5,
        )

    def cancel(self) -> None:
        self.num_cancels += 1

    def close(self) -> None:
        self.is_closed = True


def fake_token(seed: int, position: int) -> int:
    return (int(seed) * 31 + int(position) * 7) % VOCAB


def make_assignment(
    seat: int, token_ids: list[int], *blocks: list[int], params: SamplingParams | None = None, prompt_len: int = 0
) -> SeatAssignment:
    params = params or SamplingParams(temperature=0)
    return SeatAssignment(seat, f"r{seat}", token_ids, prompt_len or len(token_ids), params, 1000 + seat, tuple(blocks))


def make_plan(
    rows: list[tuple[int, int, int]] = (), logits: list[tuple[int, int, int]] = (), **changes: Any
) -> SchedulerOutput:
    """Return a plan: `rows` are (seat, computed, scheduled), `logits` are (row, seat, position)."""
    seats, computed, scheduled = np.array(rows, np.int32).reshape(-1, 3).T.copy()
    logit_rows, logit_seats, logit_positions = np.array(logits, np.int32).reshape(-1, 3).T.copy()
    empty: dict[str, Any] = {"released_seats": [], "assigned": [], "replaced": [], "appended": [], "moves": []}
    return SchedulerOutput(
        step_id=0,
        seats=seats,
        num_computed_tokens=computed,
        num_scheduled_tokens=scheduled,
        logit_rows=logit_rows,
        logit_seats=logit_seats,
        logit_positions=logit_positions,
        **{**empty, **changes},
    )
