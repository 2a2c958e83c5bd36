"""How many tokens of a prompt one step computes. Any cut gives the same bits, so this is only about time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from octavo.config import SchedulerConfig


class ChunkSizer(Protocol):
    """Limits the rows that one prefill takes of a step while other requests wait or decode."""

    def limit(self, token_budget: int) -> int:
        """Return the most tokens one prefill takes of a step that has `token_budget` for all; at least 1."""
        ...

    def observe(self, num_tokens: int, step_seconds: float, limited: bool) -> None:
        """Learn from a step: its rows, its time, and whether a prefill in it was cut at the limit.

        Mutates: self.
        """
        ...


class FixedChunkSizer:
    """A constant limit; 0 means none."""

    def __init__(self, long_prefill_token_threshold: int) -> None:
        self._threshold = long_prefill_token_threshold

    def limit(self, token_budget: int) -> int:
        return min(self._threshold, token_budget) if self._threshold > 0 else token_budget

    def observe(self, num_tokens: int, step_seconds: float, limited: bool) -> None:
        """See `ChunkSizer`. A constant learns nothing."""


class TargetItlChunkSizer:
    """A limit that keeps steps near a target time, so that decoding requests see a steady inter-token latency.

    A step that took too long shrinks the limit in proportion; one that was cut at the limit and still had time to spare
    lets it grow by a quarter.
    """

    SMALLEST = 16
    """Below one tile of tokens a row costs as much as sixteen."""

    def __init__(self, target_itl_ms: float, max_num_batched_tokens: int) -> None:
        self._target_seconds = target_itl_ms / 1000.0
        self._most = max_num_batched_tokens
        self._limit = min(max(self.SMALLEST, max_num_batched_tokens // 4), self._most)

    def limit(self, token_budget: int) -> int:
        return min(self._limit, token_budget)

    def observe(self, num_tokens: int, step_seconds: float, limited: bool) -> None:
        if not limited or step_seconds <= 0.0:
            return
        ratio = self._target_seconds / step_seconds
        if ratio < 1.0:
            self._limit = max(min(self.SMALLEST, self._most), int(min(self._limit, num_tokens) * ratio))
        elif ratio > 1.25:
            self._limit = min(self._most, self._limit + max(1, self._limit // 4))


def make_chunk_sizer(config: SchedulerConfig) -> ChunkSizer:
    """Return the sizer that the options ask for."""
    if config.target_itl_ms is not None:
        return TargetItlChunkSizer(config.target_itl_ms, config.max_num_batched_tokens)
    return FixedChunkSizer(config.long_prefill_token_threshold)
