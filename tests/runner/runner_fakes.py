"""A program without a model, and short ways to write plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from octavo.core.step import SchedulerOutput, SeatAssignment
from octavo.pooling_params import PoolingType
from octavo.program.forward_batch import RESULT_DTYPE, ForwardBatch, SampleBatch, SampleOutput
from octavo.sampling_params import SamplingParams

VOCAB = 100
HIDDEN = 8


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
        self.excluded_rows: list[int] = []
        self.pooled: tuple[list[int], list[int]] | None = None
        self.bad_token: int | None = None

    def run(self, batch: ForwardBatch) -> float:
        if self.run_error is not None:
            raise self.run_error
        self.forward = batch
        self.num_runs += 1
        return 0.25

    def sample(self, batch: SampleBatch) -> SampleOutput:
        if self.sample_error is not None:
            raise self.sample_error
        self.sampling = replace(batch, choices=batch.choices.copy())
        choices = self.sampling.choices
        results = np.zeros(len(choices), RESULT_DTYPE)
        chosen = [fake_token(s, p) for s, p in zip(choices["seed"], choices["position"], strict=True)]
        results["token_id"] = np.where(choices["forced_token"] >= 0, choices["forced_token"], chosen)
        results["status"][self.bad_rows] = 1
        results["status"][self.excluded_rows] = 2
        results["rank"] = np.arange(1, len(choices) + 1)
        results["logprob"] = -choices["row"]
        rows, columns = choices["row"][:, None], np.arange(max(0, batch.max_logprobs), dtype=np.int32)
        return SampleOutput(results, rows + columns, (-rows - 0.5 * columns).astype(np.float32), native_seconds=0.5)

    def pool(self, rows: np.ndarray, targets: np.ndarray, sums: np.ndarray) -> float:
        """The hidden state of a row is its token id, eight times."""
        self.pooled = (rows.tolist(), targets.tolist())
        for row, target in zip(rows, targets, strict=True):
            sums[target] += self.hidden_of(int(self.forward.token_ids[row]))
        return 0.125

    def hidden_of(self, token_id: int) -> float:
        return np.nan if token_id == self.bad_token else float(token_id)

    @property
    def progress(self) -> int:
        return 0

    def cancel(self) -> None:
        self.num_cancels += 1

    def close(self) -> None:
        self.is_closed = True


def fake_token(seed: int, position: int) -> int:
    return (int(seed) * 31 + int(position) * 7) % VOCAB


def make_assignment(
    seat: int,
    token_ids: list[int],
    *blocks: list[int],
    params: SamplingParams | None = None,
    prompt_len: int = 0,
    pooling: PoolingType | None = None,
) -> SeatAssignment:
    params = params or SamplingParams(temperature=0)
    size = prompt_len or len(token_ids)
    return SeatAssignment(seat, f"r{seat}", token_ids, size, params, 1000 + seat, tuple(blocks), pooling)


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
