"""/metrics under vLLM's names, the line of the log, and JSON logs."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from typing import Any

import pytest
from face_fakes import make_engine, make_llm
from prometheus_client.parser import text_string_to_metric_families
from server_process import ServerProcess

from octavo.frontend.engine_metrics import Counter, Gauge, Histogram, Metric
from octavo.observe import distribution
from octavo.observe.distribution import Distribution, request_token_edges
from octavo.sampling_params import SamplingParams
from octavo.server.json_logs import JsonFormatter
from octavo.server.metrics import HttpMetricsMiddleware, ServerMetrics
from octavo.server.throughput_log import ThroughputLog

GAUGES = ("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
          "cache_config_info")  # fmt: skip
COUNTERS = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_cached",
            "prompt_tokens_by_source", "generation_tokens", "request_success", "admission_rejections")  # fmt: skip
LATENCIES = ("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
             "request_prefill_time_seconds", "request_decode_time_seconds")  # fmt: skip
LENGTHS = ("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
           "request_params_max_tokens", "request_prefill_kv_computed_tokens")  # fmt: skip
EDGES: dict[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": distribution.TTFT_EDGES,
    "inter_token_latency_seconds": distribution.ITL_EDGES,
    "request_time_per_output_token_seconds": distribution.ITL_EDGES,
    **dict.fromkeys(LATENCIES, distribution.LATENCY_EDGES),
    **dict.fromkeys(LENGTHS, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    "iteration_tokens_total": distribution.STEP_TOKEN_EDGES,
}


class FakeLLM:
    """What `ServerMetrics` needs of `AsyncLLM`."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine


def samples_of(text: str) -> dict[str, list[Any]]:
    """Samples by name, as Prometheus reads them."""
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def find(metrics: list[Metric], name: str) -> Histogram:
    (metric,) = (entry for entry in metrics if entry.name == f"vllm:{name}")
    assert isinstance(metric, Histogram)
    return metric


def test_the_server_has_vllms_series_with_its_labels_and_edges(server: ServerProcess) -> None:
    server.complete("a prompt", max_tokens=3, ignore_eos=True)
    samples = samples_of(server.client.get("/metrics").text)
    names = [f"vllm:{name}" for name in GAUGES] + [f"vllm:{name}_total" for name in COUNTERS]
    for name in names:
        assert all(sample.labels["model_name"] == "tiny" and sample.labels["engine"] == "0" for sample in samples[name])
    for name, edges in EDGES.items():
        found = [float(sample.labels["le"]) for sample in samples[f"vllm:{name}_bucket"]]
        assert found == [*edges, float("inf")], name
    reasons = {sample.labels["finished_reason"] for sample in samples["vllm:request_success_total"]}
    assert reasons == {"stop", "length", "abort", "error"}


def test_old_names_tell_the_same(server: ServerProcess) -> None:
    server.complete("a prompt", max_tokens=3, ignore_eos=True)
    samples = samples_of(server.client.get("/metrics").text)
    for new, old in [
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    ]:
        assert [sample.value for sample in samples[new]] == [sample.value for sample in samples[old]]


def test_unknown_paths_methods_and_models_make_no_new_series(server: ServerProcess) -> None:
    def strange_requests(number: int) -> None:
        server.client.request(f"FOO{number}", "/v1/models")
        server.client.get(f"/nowhere/{number}")
        server.client.get(f"/v1/models/none{number}")
        server.complete("a", model=f"none{number}")

    strange_requests(0)
    before = samples_of(server.client.get("/metrics").text)
    for number in range(1, 20):
        strange_requests(number)
    after = samples_of(server.client.get("/metrics").text)
    assert {name: len(entries) for name, entries in after.items()} == {
        name: len(entries) for name, entries in before.items()
    }
    counts = {tuple(sample.labels.values()): sample.value for sample in after["http_requests_total"]}
    assert counts["none", "GET", "4xx"] >= 20
    assert counts["/v1/models", "other", "4xx"] >= 20


def test_each_finished_request_is_counted_once_everywhere() -> None:
    llm, _ = make_llm(max_model_len=600)
    llm.generate(["abcd", "xy"], SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    metrics = llm.get_metrics()
    llm.close()
    for name in (*LATENCIES, *LENGTHS, "time_to_first_token_seconds", "request_params_n", "request_num_preemptions"):
        assert find(metrics, name).count == 2, name
    assert find(metrics, "request_prompt_tokens").sum == 6
    assert find(metrics, "request_prompt_tokens").buckets["2.0"] == 1
    assert find(metrics, "request_generation_tokens").value == 8
    assert find(metrics, "request_params_max_tokens").value == 40
    assert find(metrics, "inter_token_latency_seconds").count == 6
    steps = next(entry.value for entry in metrics if entry.name == "octavo:steps")
    assert find(metrics, "iteration_tokens_total").count == steps
    whole, decode = find(metrics, "e2e_request_latency_seconds"), find(metrics, "request_decode_time_seconds")
    assert whole.value >= decode.value > 0


def test_all_completions_of_a_stream_are_counted() -> None:
    llm, _ = make_llm()
    list(llm.stream("ab", SamplingParams(n=3, temperature=1, max_tokens=9)))
    metrics = llm.get_metrics()
    llm.close()
    endings = {
        entry.labels["finished_reason"]: entry.value for entry in metrics if entry.name == "vllm:request_success"
    }
    assert endings == {"stop": 3, "length": 0, "abort": 0, "error": 0}
    assert next(entry.value for entry in metrics if entry.name == "octavo:completions_forked") == 2


def test_a_request_that_is_aborted_counts_as_such() -> None:
    engine, _ = make_engine(step_seconds=0.01)
    engine.add_request("a", "x" * 40, SamplingParams(max_tokens=100))
    while not engine.step():
        pass
    engine.abort_request("a")
    engine.reset_prefix_cache()  # is answered after the abort
    endings = {entry.labels.get("finished_reason"): entry.value for entry in engine.get_metrics()}
    engine.close()
    assert endings["abort"] == 1
    assert endings["stop"] == 0


def test_metrics_can_be_read_of_an_engine_that_was_closed() -> None:
    llm, _ = make_llm()
    llm.generate("ab", use_tqdm=False)
    llm.close()
    assert any(entry.name == "vllm:generation_tokens" and entry.value == 3 for entry in llm.llm_engine.read_metrics())


def test_a_distribution_counts_up_to_each_edge() -> None:
    spread = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        spread.observe(value)
    spread.observe(2.0, 3)
    assert (spread.counts, spread.sum) == ([2, 4, 1], 18.0)


def test_lengths_are_told_apart_up_to_the_longest() -> None:
    assert request_token_edges(512) == (1, 2, 5, 10, 20, 50, 100, 200, 500)
    assert request_token_edges(1) == (1,)
    assert request_token_edges(1000)[-1] == 1000


async def _call(app: HttpMetricsMiddleware, path: str, method: str) -> None:
    async def ignore(*_: Any) -> None:
        return

    await app({"type": "http", "path": path, "method": method}, ignore, ignore)  # type: ignore[arg-type]


def test_a_handler_that_fails_is_counted_as_500() -> None:
    engine, _ = make_engine()
    metrics = ServerMetrics("m")

    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    async def run() -> bytes:
        with pytest.raises(ZeroDivisionError):
            await _call(HttpMetricsMiddleware(broken, metrics), "/v1/completions", "POST")
        return await metrics.render(FakeLLM(engine))  # type: ignore[arg-type]

    text = asyncio.run(run()).decode()
    engine.close()
    assert 'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 1.0' in text


def test_a_client_that_left_before_the_answer_is_no_fault_of_the_server() -> None:
    engine, _ = make_engine()
    metrics = ServerMetrics("m")

    async def answer_nobody(*_: Any) -> None:
        return

    async def run() -> bytes:
        await _call(HttpMetricsMiddleware(answer_nobody, metrics), "/v1/completions", "POST")
        return await metrics.render(FakeLLM(engine))  # type: ignore[arg-type]

    text = asyncio.run(run()).decode()
    engine.close()
    assert 'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0' in text


def make_metrics(**values: float) -> list[Metric]:
    gauges = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
    counters = dict.fromkeys(("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"), 0.0)
    return [
        *(Gauge(f"vllm:{name}", values.get(name, value)) for name, value in gauges.items()),
        *(Counter(f"vllm:{name}", values.get(name, value)) for name, value in counters.items()),
    ]


def test_the_log_line_has_vllms_form() -> None:
    log = ThroughputLog(0.0, make_metrics())
    new = make_metrics(
        prompt_tokens=100, generation_tokens=50, prefix_cache_queries=100, prefix_cache_hits=25,
        num_requests_running=3, num_requests_waiting=2, kv_cache_usage_perc=0.123,
    )  # fmt: skip
    line = log.next_line(10.0, new)
    assert line is not None
    assert re.fullmatch(
        r"Engine 000: Avg prompt throughput: 10\.0 tokens/s, Avg generation throughput: 5\.0 tokens/s, "
        r"Running: 3 reqs, Waiting: 2 reqs, CPU KV cache usage: 12\.3%, Prefix cache hit rate: 25\.0%",
        line,
    )


def test_an_idle_engine_is_logged_once_and_then_no_more() -> None:
    log = ThroughputLog(0.0, make_metrics())
    assert log.next_line(10.0, make_metrics()) is None
    assert log.next_line(20.0, make_metrics(generation_tokens=5)) is not None
    last = log.next_line(30.0, make_metrics(generation_tokens=5))
    assert last is not None
    assert "generation throughput: 0.0" in last
    assert log.next_line(40.0, make_metrics(generation_tokens=5)) is None


def test_a_log_record_becomes_one_line_of_json() -> None:
    record = logging.makeLogRecord({"name": "octavo", "levelname": "INFO", "msg": "a %s\nb", "args": ("x",)})
    record.request_id = "r1"
    try:
        raise ValueError("bad")
    except ValueError:
        record.exc_info = sys.exc_info()
    text = JsonFormatter().format(record)
    entry = json.loads(text)
    assert "\n" not in text
    assert (entry["message"], entry["level"], entry["request_id"]) == ("a x\nb", "INFO", "r1")
    assert "ValueError: bad" in entry["exception"]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00$", entry["time"])
