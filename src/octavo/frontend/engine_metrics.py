"""Counters and gauges of one engine, under vLLM's names, fed by the engine core's events and by finished outputs."""

from __future__ import annotations

import time
from collections import Counter as Tally
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.observe.events import RequestAdmitted

if TYPE_CHECKING:
    from octavo.core.scheduler import Scheduler
    from octavo.observe.events import Event
    from octavo.outputs import RequestOutput, RequestStateStats


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


class EngineMetrics:
    """Sums over finished requests, and what only the engine core's events tell: when a request first ran."""

    enabled = True
    wants_steps = False

    def __init__(self) -> None:
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._endings: Tally[str] = Tally()
        self._unscheduled: dict[str, RequestStateStats] = {}
        """Stats of requests that have not run yet."""

    def track(self, core_id: str, stats: RequestStateStats) -> None:
        """Stamp `stats` when the request is first scheduled."""
        self._unscheduled[core_id] = stats

    def forget(self, core_id: str) -> None:
        """Stop tracking a request that has ended; it need not have run."""
        self._unscheduled.pop(core_id, None)

    def emit(self, event: Event) -> None:
        """Take one event, on the engine's thread."""
        if isinstance(event, RequestAdmitted):
            stats = self._unscheduled.pop(event.request_id, None)
            if stats is not None:
                stats.scheduled_ts = time.monotonic()

    def count_finished(self, output: RequestOutput) -> None:
        """Add a finished request."""
        self._num_prompt_tokens += len(output.prompt_token_ids or ())
        self._num_cached_tokens += output.num_cached_tokens or 0
        self._endings.update(completion.finish_reason or "" for completion in output.outputs)

    def snapshot(self, scheduler: Scheduler) -> list[Metric]:
        """Return all metrics as they are now, between two steps."""
        roster, manager = scheduler.roster, scheduler.manager
        return [
            Gauge("vllm:num_requests_running", len(roster.running)),
            Gauge("vllm:num_requests_waiting", len(roster.waiting)),
            Gauge("vllm:kv_cache_usage_perc", manager.usage()),
            Counter("vllm:prompt_tokens", self._num_prompt_tokens),
            Counter("vllm:prompt_tokens_cached", self._num_cached_tokens),
            Counter("vllm:generation_tokens", scheduler.num_generated_tokens),
            Counter("vllm:num_preemptions", roster.num_preemptions),
            Counter("vllm:prefix_cache_queries", manager.num_queried_tokens),
            Counter("vllm:prefix_cache_hits", manager.num_hit_tokens),
            *(
                Counter("vllm:request_success", count, {"finished_reason": reason})
                for reason, count in sorted(self._endings.items())
            ),
        ]
