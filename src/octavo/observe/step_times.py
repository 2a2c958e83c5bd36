"""What steps cost, learnt from how long they took: nobody else knows what a row costs on this machine."""

from __future__ import annotations

from collections import deque


class StepTimes:
    """The seconds of a step as so much, and so much per decode row and per token of a prompt, fitted to those so far.

    Least squares of the relative errors, so that a step that was held up counts little; older steps fade. Descent by
    one cost at a time keeps all at 0 or above, and leaves as it was what equal steps cannot tell apart. Steps are only
    kept; they are summed up and the costs fitted when someone asks.
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
        self._unsummed: deque[tuple[float, float, float, float]] = deque(maxlen=200)  # older steps have faded

    def observe(self, num_decoding: int, num_prefill_tokens: int, step_seconds: float) -> None:
        """Learn from a step. Mutates: self."""
        if step_seconds > 0.0:
            self.num_steps += 1
            self._unsummed.append((num_prefill_tokens, 1, num_decoding, step_seconds))

    def fit(self) -> tuple[float, float, float]:
        """Return seconds per token of a prompt, of any step, and per decode row; 0: not known. Mutates: self."""
        for *numbers, step_seconds in self._unsummed:
            counts = [number / step_seconds for number in numbers]
            self._sums = [self._KEPT * known + count for known, count in zip(self._sums, counts, strict=True)]
            for row, count in zip(self._products, counts, strict=True):
                row[:] = [self._KEPT * known + count * other for known, other in zip(row, counts, strict=True)]
        self._unsummed.clear()
        costs = self._costs
        least = self._FADED * self._products[1][1]
        for _ in range(self._SWEEPS):
            for index, (total, row) in enumerate(zip(self._sums, self._products, strict=True)):
                if row[index] > least:
                    error = total - sum(map(float.__mul__, row, costs))
                    costs[index] = max(0.0, costs[index] + error / row[index])
        return costs[0], costs[1], costs[2]
