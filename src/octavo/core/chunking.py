"""How many tokens of prompts one step computes. Any cut gives the same bits, so this is only about time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.observe.step_times import StepTimes

if TYPE_CHECKING:
    from octavo.config import SchedulerConfig


class ChunkSizer:
    """Limits prompts for the sake of those who share a step with them.

    Beside any other request, one prompt takes at most `long_prefill_token_threshold` tokens of a step. Beside requests
    that decode and are streamed, all prompts together take what lets the step end within `target_itl_ms`, or `LEAST`
    times what it takes without them; by default, `SLOWDOWN` times that. What a row costs is measured.
    """

    SLOWDOWN = 2.2
    LEAST = 1.5
    """Else prompts would stand still where many streams, or a large model, take all of the target time."""
    PROBE_INTERVAL = 8
    """Steps until one with one token of a prompt: steps that are all alike do not tell what costs how much."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._budget = config.max_num_batched_tokens
        self.most_of_one_prompt = config.long_prefill_token_threshold or self._budget
        self._target_seconds = (config.target_itl_ms or 0.0) / 1000.0
        self._slowdown = self.SLOWDOWN if config.target_itl_ms is None else self.LEAST
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
        target = max(self._target_seconds, self._slowdown * alone)
        if alone == 0.0 or self.times.num_steps % self.PROBE_INTERVAL == 0:
            return 1
        return int(min(max(1, (target - alone) / per_token), self._budget))
