"""/metrics in Prometheus' text form: the engine's own numbers, read when asked, and counts of HTTP requests.

Label values come from fixed sets, so that no client can make the number of series grow.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, exposition
from prometheus_client import Counter as HttpCounter
from prometheus_client import Histogram as HttpHistogram
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from octavo.frontend.engine_metrics import Counter, Histogram, Metric
from octavo.server.http import CLIENT_GONE, served_path
from octavo.server.protocol.openapi import known_paths
from octavo.server.throughput_log import ThroughputLog

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from octavo.frontend.async_engine import AsyncLLM

logger = logging.getLogger("octavo")

CONTENT_TYPE = exposition.CONTENT_TYPE_LATEST
LOG_SECONDS = 10.0
"""Between two lines of the log about the engine's throughput."""

_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})
_UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version"})
"""What monitors ask all the time."""
_FINE_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)  # fmt: skip

_OLD_NAMES = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}
"""What older dashboards ask for: the same numbers under both names."""
_HELP = {
    "vllm:num_requests_running": "Requests that run.",
    "vllm:num_requests_waiting": "Requests that wait for a seat or for memory.",
    "vllm:kv_cache_usage_perc": "Share of the KV cache that running requests hold, 0 to 1.",
    "vllm:prompt_tokens": "Tokens of the prompts that were computed or found in the prefix cache.",
    "vllm:generation_tokens": "Tokens generated.",
    "vllm:prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Tokens found in the prefix cache.",
    "vllm:num_preemptions": "Times a request lost its memory to others, to be recomputed.",
    "vllm:request_success": "Completions that ended, by reason.",
    "vllm:iteration_tokens_total": "Tokens of a step.",
    "octavo:kv_cache_capacity_bytes": "Most bytes that the KV cache may hold.",
    "octavo:kv_cache_used_bytes": "Bytes of blocks that running requests hold.",
    "octavo:kv_cache_cached_bytes": "Bytes of blocks that nobody uses and that may be hit.",
    "octavo:preempted_tokens": "Computed tokens that preempted requests lost, unless they were still cached.",
    "octavo:kv_cache_evictions": "Cached blocks given up because their memory was needed.",
    "octavo:kv_cache_slots_held": "Room for tokens in the blocks in use, summed over steps.",
    "octavo:kv_cache_slots_empty": "The part of it that held no token: what paging wastes.",
    "octavo:completions_forked": "Completions that began by sharing the blocks of another one.",
    "octavo:steps": "Steps computed.",
    "octavo:step_seconds": "Seconds that steps took.",
    "octavo:step_native_seconds": "Seconds of them spent in native code.",
    "octavo:step_tokens": "Rows that steps computed, of prompts and of decoding requests.",
}


class ServerMetrics:
    """The metrics of one server.

    Args:
        model_name: what the engine's series are labelled with.
    """

    def __init__(self, model_name: str) -> None:
        self._engine = _EngineCollector({"model_name": model_name, "engine": "0"})
        self._registry = CollectorRegistry()
        self._registry.register(self._engine)
        self.requests = HttpCounter(
            "http_requests", "HTTP requests.", ("handler", "method", "status"), registry=self._registry
        )
        self.seconds = HttpHistogram(
            "http_request_duration_seconds",
            "Seconds until an answer was complete.",
            ("handler", "method"),
            buckets=(0.1, 0.5, 1),
            registry=self._registry,
        )
        self.fine_seconds = HttpHistogram(
            "http_request_duration_highr_seconds",
            "The same of all handlers together, with more edges.",
            buckets=_FINE_EDGES,
            registry=self._registry,
        )

    async def render(self, llm: AsyncLLM) -> bytes:
        """Return all metrics as text."""
        self._engine.metrics = llm.engine.read_metrics()
        return exposition.generate_latest(self._registry)

    async def log_forever(self, llm: AsyncLLM) -> None:
        """Log the engine's throughput as long as it has some, until cancelled."""
        log = ThroughputLog(time.monotonic(), llm.engine.read_metrics())
        while True:
            await asyncio.sleep(LOG_SECONDS)
            line = log.next_line(time.monotonic(), llm.engine.read_metrics())
            if line is not None:
                logger.info(line)


class HttpMetricsMiddleware:
    """Counts requests by path, method and class of status."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(known_paths())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = served_path(scope)
        if scope["type"] != "http" or path in _UNCOUNTED:
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), CLIENT_GONE

        async def watching_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watching_send)
        except Exception:
            status = 500 if status == CLIENT_GONE else status
            raise
        finally:
            self._count(path, scope["method"], status, time.monotonic() - started)

    def _count(self, path: str, method: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"
        handler = path if path in self._paths else "/v1/models/{model}" if path.startswith("/v1/models/") else "none"
        self._metrics.requests.labels(handler, method, f"{status // 100}xx").inc()
        self._metrics.seconds.labels(handler, method).observe(seconds)
        self._metrics.fine_seconds.observe(seconds)


class _EngineCollector(Collector):
    """Turns the engine's numbers into Prometheus' families."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.metrics: Iterable[Metric] = ()
        self.labels = labels

    def collect(self) -> Iterator[Family]:
        """Return the families with all their series."""
        families: dict[str, Family] = {}
        for metric in self.metrics:
            names = [metric.name, _OLD_NAMES[metric.name]] if metric.name in _OLD_NAMES else [metric.name]
            for name in names:
                if name not in families:
                    families[name] = Family(name, _HELP.get(metric.name) or _help_of(name), _kind_of(metric))
                _add_samples(families[name], metric, {**self.labels, **metric.labels})
        yield from families.values()


def _add_samples(family: Family, metric: Metric, labels: dict[str, str]) -> None:
    if not isinstance(metric, Histogram):
        suffix = "_total" if isinstance(metric, Counter) else ""
        family.add_sample(family.name + suffix, labels, metric.value)
        return
    for edge, count in metric.buckets.items():
        family.add_sample(f"{family.name}_bucket", {**labels, "le": edge}, count)
    family.add_sample(f"{family.name}_count", labels, metric.count)
    family.add_sample(f"{family.name}_sum", labels, metric.value)


def _kind_of(metric: Metric) -> str:
    if isinstance(metric, Histogram):
        return "histogram"
    return "counter" if isinstance(metric, Counter) else "gauge"


def _help_of(name: str) -> str:
    return name.partition(":")[2].replace("_", " ").capitalize() + "."
