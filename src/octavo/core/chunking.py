"""How many tokens of prompts one step computes. Any cut gives the same bits, so this is only about time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.config import SchedulerConfig


class ChunkSizer:
    """Limits prompts for the sake of those who share a step with them.

    Beside any other request, one prompt takes at most `long_prefill_token_threshold` tokens of a step. Beside requests
    that decode and are streamed, all prompts together take what lets the step end within `target_itl_ms`; by default,
    within `SLOWDOWN` times what it takes without them. What a row costs is measured.
    """

    SLOWDOWN = 2.2
    SMALLEST = 4
    """A prompt goes on at this pace at least, though the step takes longer then."""
    _WEIGHT = 0.3
    """Of the newest measurement in the running mean."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._budget = config.max_num_batched_tokens
        self.most_of_one_prompt = config.long_prefill_token_threshold or self._budget
        self._target_seconds = None if config.target_itl_ms is None else config.target_itl_ms / 1000.0
        self._is_unlimited = config.target_itl_ms is None and config.long_prefill_token_threshold == 0
        self._decode_seconds = 0.0
        """Of one decoding row; 0 until it was measured."""
        self._prefill_seconds = 0.0
        """Of one token of a prompt."""

    def most_beside_streams(self, num_decoding: int) -> int:
        """Return the most tokens of prompts in a step with `num_decoding` decoding rows."""
        alone = self._decode_seconds * num_decoding
        target = self.SLOWDOWN * alone if self._target_seconds is None else self._target_seconds
        if self._is_unlimited or target == 0.0 or self._prefill_seconds == 0.0:
            return self._budget
        return min(max(self.SMALLEST, int((target - alone) / self._prefill_seconds)), self._budget)

    def observe(self, num_decoding: int, num_prefill_tokens: int, step_seconds: float) -> None:
        """Learn from the time of a step. Mutates: self."""
        if num_prefill_tokens >= self.SMALLEST:
            rest = max(0.0, step_seconds - self._decode_seconds * num_decoding)
            self._prefill_seconds = self._mean(self._prefill_seconds, rest / num_prefill_tokens)
        elif num_prefill_tokens <= 0 < num_decoding:
            self._decode_seconds = self._mean(self._decode_seconds, step_seconds / num_decoding)

    def _mean(self, known: float, measured: float) -> float:
        return known + self._WEIGHT * (measured - known) if known else measured
