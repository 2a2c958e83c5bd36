"""The periodic line of the log about the engine, in vLLM's form, so that scripts that read it go on to work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.frontend.engine_metrics import Metric

_PROMPT, _GENERATION = "vllm:prompt_tokens", "vllm:generation_tokens"
_QUERIES, _HITS = "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"


class ThroughputLog:
    """Compares the counters with those of the last time.

    Args:
        now: on the monotonic clock.
        metrics: of the engine, at that time.
    """

    def __init__(self, now: float, metrics: Iterable[Metric]) -> None:
        self._then = now
        self._old = _values(metrics)
        self._hit_rate = 0.0
        self._was_busy = False

    def next_line(self, now: float, metrics: Iterable[Metric]) -> str | None:
        """Return the line about the time since the last; None if nothing happened, then or before."""
        new, seconds = _values(metrics), max(now - self._then, 1e-9)
        gained = {name: new[name] - self._old[name] for name in (_PROMPT, _GENERATION, _QUERIES, _HITS)}
        self._then, self._old = now, new
        if gained[_QUERIES]:
            self._hit_rate = gained[_HITS] / gained[_QUERIES]
        running, waiting = new["vllm:num_requests_running"], new["vllm:num_requests_waiting"]
        is_busy = bool(running or waiting or gained[_PROMPT] or gained[_GENERATION])
        was_busy, self._was_busy = self._was_busy, is_busy
        if not (is_busy or was_busy):
            return None
        return (
            f"Engine 000: Avg prompt throughput: {gained[_PROMPT] / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {gained[_GENERATION] / seconds:.1f} tokens/s, "
            f"Running: {running:.0f} reqs, Waiting: {waiting:.0f} reqs, "
            f"CPU KV cache usage: {new['vllm:kv_cache_usage_perc']:.1%}, "
            f"Prefix cache hit rate: {self._hit_rate:.1%}"
        )


def _values(metrics: Iterable[Metric]) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics if not metric.labels}
