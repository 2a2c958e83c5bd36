"""How many tokens of prompts one step computes. Any cut gives the same bits, so this is only about time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.config import SchedulerConfig


class StepTimes:
    """The seconds of a step as so much, and so much per decode row and per token of a prompt, fitted to those so far.

    Least squares of the relative errors, so that a step that was held up counts little; older steps fade. Descent by
    one cost at a time keeps all at 0 or above, and leaves as it was what equal steps cannot tell apart. Steps are only
    summed up; the costs are fitted when someone asks.
    """

    _KEPT = 0.93
    """Of the weight of all steps before, at each new one."""
    _SWEEPS = 8
    _FADED = 1e-6
    """A cost keeps its value while the steps that tell it have so little weight."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._costs = [0.0, 0.0, 0.0]
        """Per token of a prompt, fixed, per decode row."""
        self._sums = [0.0, 0.0, 0.0]
        """Per cost, its counts over seconds, summed; then their products with each other."""
        self._products = [[0.0, 0.0, 0.0] for _ in self._sums]

    def observe(self, num_decoding: int, num_prefill_tokens: int, step_seconds: float) -> None:
        """Learn from a step. Mutates: self."""
        if step_seconds <= 0.0:
            return
        self.num_steps += 1
        counts = [count / step_seconds for count in (num_prefill_tokens, 1, num_decoding)]
        self._sums = [self._KEPT * known + count for known, count in zip(self._sums, counts, strict=True)]
        for row, count in zip(self._products, counts, strict=True):
            row[:] = [self._KEPT * known + count * other for known, other in zip(row, counts, strict=True)]

    def fit(self) -> tuple[float, float, float]:
        """Return seconds per token of a prompt, of any step, and per decode row; 0: not known. Mutates: self."""
        costs = self._costs
        least = self._FADED * self._products[1][1]
        for _ in range(self._SWEEPS):
            for index, (total, row) in enumerate(zip(self._sums, self._products, strict=True)):
                if row[index] > least:
                    error = total - sum(map(float.__mul__, row, costs))
                    costs[index] = max(0.0, costs[index] + error / row[index])
        return costs[0], costs[1], costs[2]


class ChunkSizer:
    """Limits prompts for the sake of those who share a step with them.

    Beside any other request, one prompt takes at most `long_prefill_token_threshold` tokens of a step. Beside requests
    that decode and are streamed, all prompts together take what lets the step end within `target_itl_ms`; by default,
    within `SLOWDOWN` times what it takes without them. What a row costs is measured.
    """

    SLOWDOWN = 2.2
    SMALLEST = 4
    """A prompt goes on at this pace at least, though the step takes longer then."""
    PROBE_INTERVAL = 8
    """Steps until one with one token of a prompt: steps that are all alike do not tell what costs how much."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._budget = config.max_num_batched_tokens
        self.most_of_one_prompt = config.long_prefill_token_threshold or self._budget
        self._target_seconds = None if config.target_itl_ms is None else config.target_itl_ms / 1000.0
        self._is_unlimited = config.target_itl_ms is None and config.long_prefill_token_threshold == 0
        self.times = StepTimes()

    def most_beside_streams(self, num_decoding: int) -> int:
        """Return the most tokens of prompts in a step with `num_decoding` decoding rows."""
        if self._is_unlimited:
            return self._budget
        per_token, fixed, per_row = self.times.fit()
        alone = fixed + per_row * num_decoding
        if per_token == 0.0:
            return self._budget
        target = self.SLOWDOWN * alone if self._target_seconds is None else self._target_seconds
        if alone == 0.0 or self.times.num_steps % self.PROBE_INTERVAL == 0:
            return 1
        return int(min(max(self.SMALLEST, (target - alone) / per_token), self._budget))
