"""One step of the data plane: a plan becomes arrays, the program runs, logit rows become tokens, pooled rows sums."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import numpy as np

from octavo.core.step import ModelRunnerOutput, NonFiniteError, TokenLogprobs
from octavo.errors import RequestError
from octavo.sampling.sampler import SampledRows, ScoredRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.core.step import Fault, SchedulerOutput
    from octavo.program.forward_batch import AllowedTokens, ForwardBatch, SampleBatch, SampleOutput
    from octavo.runner.cache_memory import CacheMemory
    from octavo.runner.input_batch import InputBatch


class StepProgram(Protocol):
    """What the runner needs of a program that is ready to run; `program.native.NativeProgram` is one."""

    def run(self, batch: ForwardBatch) -> float:
        """Compute the hidden rows of `batch`; return the seconds spent in native code."""
        ...

    def sample(self, batch: SampleBatch) -> SampleOutput:
        """Compute logits of hidden rows, and sample or score them."""
        ...

    def pool(self, rows: NDArray[np.int32], targets: NDArray[np.int32], sums: NDArray[np.float64]) -> float:
        """Add the final hidden states of rows to rows of `sums`, in order; return the seconds in native code."""
        ...

    def cancel(self) -> None:
        """Make the running call raise `StepCancelledError` soon. Safe from any thread."""
        ...

    @property
    def progress(self) -> int:
        """A counter that moves while a call advances. Safe from any thread."""
        ...

    def close(self) -> None:
        """Stop threads and free memory. Idempotent."""
        ...


class ModelRunner:
    """Runs plans one at a time: `execute`, then `sample`."""

    def __init__(self, program: StepProgram, inputs: InputBatch, memory: CacheMemory) -> None:
        self._program = program
        self._inputs = inputs
        self._memory = memory
        self._started = 0.0
        self._native_seconds = self._forward_seconds = 0.0

    def execute(self, plan: SchedulerOutput) -> None:
        """Apply the plan's changes, do its moves and run the body for its rows."""
        self._started = time.perf_counter()
        self._native_seconds = 0.0
        self._inputs.apply(plan)
        self._memory.apply(plan.moves)
        if len(plan.seats):
            self._native_seconds = self._program.run(self._inputs.batch(plan))
        self._forward_seconds = time.perf_counter() - self._started

    def sample(self, plan: SchedulerOutput, masks: AllowedTokens | None = None) -> ModelRunnerOutput:
        """Sample the logit rows of the plan just executed, and append the tokens to their seats."""
        result = ModelRunnerOutput(token_ids=[], logprobs=[])
        num_rows = len(plan.logit_rows)
        if num_rows or plan.prompt_logprob_rows:
            sampled = SampledRows(plan.logit_rows, plan.logit_seats, plan.logit_positions, masks)
            batch, errors = self._inputs.sampler.build(sampled, self._inputs.token_ids, self._scored_rows(plan))
            output = self._program.sample(batch)
            self._native_seconds += output.native_seconds
            choices = output.results.tolist()[:num_rows]
            result.row_errors = {row: _fault(status) for row, (_, status, _, _) in enumerate(choices) if status}
            result.row_errors |= errors
            result.token_ids = [token_id for token_id, _, _, _ in choices]
            self._append(plan, result)
            _gather_logprobs(plan, batch, output, result)
        self._pool(plan, result)
        result.native_seconds, result.forward_seconds = self._native_seconds, self._forward_seconds
        result.step_seconds = time.perf_counter() - self._started
        return result

    def _append(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        places = zip(plan.logit_seats.tolist(), plan.logit_positions.tolist(), result.token_ids, strict=True)
        for row, (seat, position, token_id) in enumerate(places):
            if row not in result.row_errors:
                self._inputs.append_token(seat, position, token_id)

    def _pool(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Add up the rows of pooled requests, and put the sums that are complete in `result`."""
        hidden_sums = self._inputs.hidden_sums
        rows, seats = hidden_sums.rows_of(plan)
        if len(rows):
            self._native_seconds += self._program.pool(rows, seats, hidden_sums.values)
            result.sums = hidden_sums.completed_by(plan)
            for index, hidden_sum in enumerate(result.sums, len(plan.logit_rows) + len(plan.prompt_logprob_rows)):
                if not np.isfinite(hidden_sum).all():
                    result.row_errors[index] = NonFiniteError("the model's hidden states are not finite numbers")

    def _scored_rows(self, plan: SchedulerOutput) -> ScoredRows | None:
        """Return the prompt rows whose next token is scored, entry by entry."""
        if not plan.prompt_logprob_rows:
            return None
        sampler, tokens = self._inputs.sampler, self._inputs.token_ids
        rows, token_ids, num_logprobs, listed = [], [], [], []
        for entry in plan.prompt_logprob_rows:
            rows.append(np.arange(entry.first_row, entry.first_row + entry.count, dtype=np.int32))
            token_ids.append(tokens[entry.seat, entry.first_position : entry.first_position + entry.count])
            num_logprobs.append(np.full(entry.count, sampler.resolve_num_logprobs(entry.num_logprobs), np.int32))
            listed.append(sampler.prompt_score_ids(entry.seat, entry.first_position, entry.count))
        return ScoredRows(np.concatenate(rows), np.concatenate(token_ids), np.concatenate(num_logprobs), listed)


def _fault(status: int) -> Fault:
    """Return what is wrong with a logit row of this status, which is not 0."""
    if status == 1:
        return NonFiniteError("the model's logits are not finite numbers")
    causes = "allowed_token_ids, bad_words, logit_bias, min_tokens and structured_outputs"
    return RequestError(f"no token is allowed: of {causes}, those of this request exclude all.")


def _gather_logprobs(
    plan: SchedulerOutput, batch: SampleBatch, output: SampleOutput, result: ModelRunnerOutput
) -> None:
    """Fill `logprobs` and `prompt_logprobs` of `result`; rows that asked for none cost nothing.

    An entry of `prompt_logprobs` with a row that could not be scored is one of `row_errors`.
    """
    num_rows = len(plan.logit_rows)
    result.logprobs = [None] * num_rows
    if batch.max_logprobs < 0:
        return
    wanted = np.flatnonzero(batch.choices["num_logprobs"] >= 0)
    entries = _token_logprobs(batch, output, wanted)
    end = int(np.searchsorted(wanted, num_rows))
    for row, entry in zip(wanted[:end].tolist(), entries[:end], strict=True):
        result.logprobs[row] = entry
    first_row = num_rows
    for index, scored in enumerate(plan.prompt_logprob_rows):
        start, end = end, end + scored.count
        result.prompt_logprobs[index] = entries[start:end]
        status = int(output.results["status"][first_row : first_row + scored.count].max())
        if status:
            result.row_errors[num_rows + index] = _fault(status)
        first_row += scored.count


def _token_logprobs(batch: SampleBatch, output: SampleOutput, rows: NDArray[np.int64]) -> list[TokenLogprobs]:
    wanted = batch.choices[["num_logprobs", "first_score", "num_scores"]][rows].tolist()
    top_ids, top_logprobs = output.top_ids, output.top_logprobs
    assert top_ids is not None, "some row wants logprobs"
    assert top_logprobs is not None, "as its ids"
    entries = []
    for row, (count, first_score, num_scores), (token_id, _, rank, logprob) in zip(
        rows.tolist(), wanted, output.results[rows].tolist(), strict=True
    ):
        token_ids = [token_id, *top_ids[row, :count].tolist()]
        values = [logprob, *top_logprobs[row, :count].tolist()]
        scores = None
        if num_scores and output.scores is not None:
            scores = output.scores[first_score : first_score + num_scores].tolist()
        entries.append(TokenLogprobs(token_ids, values, rank, scores))
    return entries
