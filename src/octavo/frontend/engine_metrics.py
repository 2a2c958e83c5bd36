"""Counters, gauges and histograms of one engine under vLLM's names; Octavo's own, of waste and sharing, beside them.

Fed by the engine core's events on the engine's thread, and by tokens and finished requests on the caller's. Whoever
reads does so from any thread, without waiting for a step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from octavo.observe import distribution as edges
from octavo.observe import events as ev
from octavo.observe.distribution import Distribution
from octavo.observe.recent import RecentValues

if TYPE_CHECKING:
    from octavo.core.scheduler import Scheduler
    from octavo.frontend.input_processor import EngineInput
    from octavo.observe.snapshot import LatenciesView
    from octavo.outputs import RequestStateStats

logger = logging.getLogger("octavo")

FINISH_REASONS = ("stop", "length", "abort", "error")
REQUESTS_KEPT, GAPS_KEPT = 1024, 4096
"""Of which percentiles are told: the last requests, and the last waits between two tokens."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A named number with labels."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A number that only grows."""


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A number that goes up and down."""


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """How many values, and how they are spread; `value` is their sum."""

    count: int = 0
    buckets: dict[str, int] = field(default_factory=dict)
    """Upper edge, "+Inf" for the last: values up to it."""

    @property
    def sum(self) -> float:
        """Of all values."""
        return self.value


@dataclass(slots=True)
class _Tracked:
    """A request that has not ended."""

    source: EngineInput
    stats: RequestStateStats
    longest: int = 0
    """Tokens of its longest completion that has ended."""


class EngineMetrics:
    """What one engine has done so far.

    Args:
        max_model_len: up to which requests' lengths are told apart.
        num_saturated: returns how many keys and values the cache's type could not hold so far, from any thread.
    """

    enabled = True
    wants_steps = False  # the history adds them up
    wants_blocks = False

    def __init__(self, max_model_len: int, num_saturated: Callable[[], int]) -> None:
        self._num_saturated = num_saturated
        self._has_warned = False
        self._tracked: dict[str, _Tracked] = {}
        self._endings = dict.fromkeys(FINISH_REASONS, 0)
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_preempted_tokens = 0
        self._num_rejections = 0
        self._num_forks = 0
        self._spreads = _make_spreads(max_model_len)
        self._itl = self._spreads["vllm:inter_token_latency_seconds"]
        self._recent_queue, self._recent_ttft, self._recent_e2e = (RecentValues(REQUESTS_KEPT) for _ in range(3))
        self._recent_itl = RecentValues(GAPS_KEPT)
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.RequestAdmitted: self._on_admitted,
            ev.RequestFinished: self._on_finished,
            ev.RequestPreempted: self._on_preempted,
            ev.RequestForked: self._on_forked,
        }

    # ---------------------------------------------------------------- on the caller's thread

    def track(self, core_id: str, source: EngineInput, stats: RequestStateStats) -> None:
        """Follow a request until `finish` or `forget`; stamp `stats` when it is first scheduled."""
        self._tracked[core_id] = _Tracked(source, stats)

    def forget(self, core_id: str) -> None:
        """Stop to follow a request whose reader has gone; it need not have run."""
        self._tracked.pop(core_id, None)

    def count_rejection(self) -> None:
        """Count a call that was refused because too many requests wait."""
        self._num_rejections += 1

    def count_first_token(self, stats: RequestStateStats, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """Count a request's prompt, now that it is computed."""
        self._num_prompt_tokens += num_prompt_tokens
        self._num_cached_tokens += num_cached_tokens
        self._spreads["vllm:time_to_first_token_seconds"].observe(stats.first_token_latency)
        self._recent_ttft.add(stats.first_token_latency)
        self._recent_queue.add(stats.scheduled_ts - stats.queued_ts)

    def count_gap(self, seconds: float, num_tokens: int) -> None:
        """Count the wait for further tokens of a completion; several that came at once took equally long."""
        self._itl.observe(seconds / num_tokens, num_tokens)
        self._recent_itl.add_times(seconds / num_tokens, num_tokens)

    def finish(self, core_id: str, num_cached_tokens: int) -> None:
        """Count a request that has ended, and whose output is read."""
        if not self._has_warned:
            self._warn_if_saturated()
        tracked = self._tracked.get(core_id)
        self.forget(core_id)
        if tracked is None:
            return
        stats, source, spreads = tracked.stats, tracked.source, self._spreads
        num_prompt = len(source.prompt_token_ids)
        spreads["vllm:request_prompt_tokens"].observe(num_prompt)
        spreads["vllm:request_params_n"].observe(source.params.n)
        spreads["vllm:request_params_max_tokens"].observe(source.max_tokens)
        spreads["vllm:request_num_preemptions"].observe(stats.num_preemptions)
        spreads["vllm:request_max_num_generation_tokens"].observe(tracked.longest)
        if not stats.first_token_ts:
            return
        decode = stats.last_token_ts - stats.first_token_ts
        spreads["vllm:request_prefill_kv_computed_tokens"].observe(num_prompt - num_cached_tokens)
        spreads["vllm:e2e_request_latency_seconds"].observe(stats.last_token_ts - stats.queued_ts)
        self._recent_e2e.add(stats.last_token_ts - stats.queued_ts)
        spreads["vllm:request_queue_time_seconds"].observe(stats.scheduled_ts - stats.queued_ts)
        spreads["vllm:request_prefill_time_seconds"].observe(stats.first_token_ts - stats.scheduled_ts)
        spreads["vllm:request_decode_time_seconds"].observe(decode)
        spreads["vllm:request_inference_time_seconds"].observe(stats.last_token_ts - stats.scheduled_ts)
        if tracked.longest > 1:
            spreads["vllm:request_time_per_output_token_seconds"].observe(decode / (tracked.longest - 1))

    def _warn_if_saturated(self) -> None:
        count = self._num_saturated()
        if count:
            self._has_warned = True
            logger.warning(
                "%d keys and values are too large for the KV cache and were cut to the largest float16: answers may be"
                ' wrong; kv_cache_dtype="bfloat16" or "float32" holds them.',
                count,
            )

    # ---------------------------------------------------------------- on the engine's thread

    def emit(self, event: ev.Event) -> None:
        """Take one event."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def _on_admitted(self, event: ev.RequestAdmitted) -> None:
        tracked = self._tracked.get(event.request_id)
        if tracked is not None and not tracked.stats.scheduled_ts:
            tracked.stats.scheduled_ts = time.monotonic()

    def _on_finished(self, event: ev.RequestFinished) -> None:
        self._endings[event.finish_reason] += 1
        self._spreads["vllm:request_generation_tokens"].observe(event.num_output_tokens)
        tracked = self._tracked.get(event.request_id)
        if tracked is not None:
            tracked.longest = max(tracked.longest, event.num_output_tokens)

    def _on_preempted(self, event: ev.RequestPreempted) -> None:
        if event.reason == "blocks":
            self._num_preempted_tokens += event.num_computed_tokens

    def _on_forked(self, _: ev.RequestForked) -> None:
        self._num_forks += 1

    # ---------------------------------------------------------------- reading, on any thread

    def snapshot(self, scheduler: Scheduler) -> list[Metric]:
        """Return all metrics as they are now; if a step runs, some may be a moment younger than others."""
        spreads = (as_histogram(name, entry) for name, entry in self._spreads.items())
        return [*self._gauges(scheduler), *self._counters(scheduler), *spreads]

    def latencies(self) -> LatenciesView:
        """Return how long the last requests and tokens took."""
        from octavo.observe.snapshot import LatenciesView  # for those who look; a start does without

        return LatenciesView(
            queue=self._recent_queue.view(),
            ttft=self._recent_ttft.view(),
            itl=self._recent_itl.view(),
            e2e=self._recent_e2e.view(),
        )

    def _gauges(self, scheduler: Scheduler) -> Iterable[Metric]:
        roster, manager = scheduler.roster, scheduler.manager
        num_waiting = len(roster.waiting)
        yield Gauge("vllm:num_requests_running", len(roster.running))
        yield Gauge("vllm:num_requests_waiting", num_waiting)
        yield Gauge("vllm:num_requests_waiting_by_reason", num_waiting, {"reason": "capacity"})
        yield Gauge("vllm:num_requests_waiting_by_reason", 0, {"reason": "deferred"})
        yield Gauge("vllm:kv_cache_usage_perc", manager.usage())
        facts = {"block_size": str(manager.block_size), "num_gpu_blocks": str(manager.pool.num_blocks[0])}
        yield Gauge("vllm:cache_config_info", 1, facts)
        yield Gauge("octavo:kv_cache_capacity_bytes", manager.pool.ledger_bytes)
        yield Gauge("octavo:kv_cache_used_bytes", manager.pool.used_bytes)
        yield Gauge("octavo:kv_cache_cached_bytes", manager.pool.held_bytes - manager.pool.used_bytes)

    def _counters(self, scheduler: Scheduler) -> Iterable[Metric]:
        roster, manager = scheduler.roster, scheduler.manager
        computed = self._num_prompt_tokens - self._num_cached_tokens
        yield Counter("vllm:prompt_tokens", self._num_prompt_tokens)
        yield Counter("vllm:prompt_tokens_cached", self._num_cached_tokens)
        yield Counter("vllm:prompt_tokens_by_source", computed, {"source": "local_compute"})
        yield Counter("vllm:prompt_tokens_by_source", self._num_cached_tokens, {"source": "local_cache_hit"})
        yield Counter("vllm:generation_tokens", scheduler.num_generated_tokens)
        yield Counter("vllm:num_preemptions", roster.num_preemptions)
        yield Counter("vllm:prefix_cache_queries", manager.num_queried_tokens)
        yield Counter("vllm:prefix_cache_hits", manager.num_hit_tokens)
        for reason, count in self._endings.items():
            yield Counter("vllm:request_success", count, {"finished_reason": reason})
        yield Counter("vllm:admission_rejections", self._num_rejections, {"reason": "max_num_queued_reqs"})
        yield Counter("octavo:preempted_tokens", self._num_preempted_tokens)
        yield Counter("octavo:kv_values_saturated", self._num_saturated())
        yield Counter("octavo:completions_forked", self._num_forks)


def _make_spreads(max_model_len: int) -> dict[str, Distribution]:
    lengths = edges.request_token_edges(max_model_len)
    seconds = ("e2e_request_latency", "request_queue_time", "request_inference_time", "request_prefill_time",
               "request_decode_time")  # fmt: skip
    tokens = ("prompt", "generation", "max_num_generation", "prefill_kv_computed")
    by_name = {
        "time_to_first_token_seconds": edges.TTFT_EDGES,
        "inter_token_latency_seconds": edges.ITL_EDGES,
        "request_time_per_output_token_seconds": edges.ITL_EDGES,
        **{f"{name}_seconds": edges.LATENCY_EDGES for name in seconds},
        **{f"request_{name}_tokens": lengths for name in tokens},
        "request_params_max_tokens": lengths,
        "request_params_n": edges.COUNT_EDGES,
        "request_num_preemptions": edges.PREEMPTION_EDGES,
    }
    return {f"vllm:{name}": Distribution(own) for name, own in by_name.items()}


def as_histogram(name: str, entry: Distribution) -> Histogram:
    """Return the metric of a distribution."""
    up_to = list(accumulate(entry.counts))
    labels = [f"{float(edge)}" for edge in entry.edges]
    return Histogram(name, entry.sum, count=up_to[-1], buckets=dict(zip([*labels, "+Inf"], up_to, strict=True)))
