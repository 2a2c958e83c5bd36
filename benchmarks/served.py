"""What a server costs beside its engine: throughput, lag of its event loop, latency it adds; prints JSON.

usage: python benchmarks/served.py throughput|lag|latency|all MODEL [--rounds N] [--streams N]

throughput: the same work offline and served, in turn, without prefix caching, as `octavo bench throughput` has it; the
    served time is less what the client's process took of the processor, because both share this machine, and `raw` as
    it was. The seconds of the server's own threads are those of its event loop.
lag: how late GET /ping is answered while all streams run, which is at least what the event loop lags.
latency: a request's time to the first byte of text less what the engine took for it, by the server's own counter.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INPUT_LEN = OUTPUT_LEN = 64
_TTFT = "vllm:time_to_first_token_seconds_sum"
_PING_SECONDS = 0.02
_NUM_REQUESTS = 100
_PROMPT = "Once upon a time there was a"


def run_bench(*arguments: str) -> dict[str, Any]:
    """Return the figures of an `octavo bench` command."""
    command = [sys.executable, "-m", "octavo", "bench", *arguments, "--json", "-q"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


@contextmanager
def served(model: str, streams: int) -> Iterator[tuple[int, int]]:
    """Run a server; yield its port and process id."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "octavo", "serve", model, "--port", str(port), "--max-num-seqs", str(streams),
        "--disable-uvicorn-access-log", "--no-enable-prefix-caching",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                if get(port, "/health")[0] == 200:
                    break
            except OSError:
                assert process.poll() is None, "the server has not started"
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def get(port: int, path: str) -> tuple[int, bytes]:
    """Return status and body of a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def loop_seconds(pid: int) -> float:
    """Return the processor time of a process's main thread, which a server's event loop runs on."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def put_load(port: int, model: str, streams: int, num_prompts: int) -> dict[str, Any]:
    """Run the work against a server."""
    return run_bench(
        "serve", "--base-url", f"http://127.0.0.1:{port}", "--tokenizer", model, "--ignore-eos",
        "--input-len", str(INPUT_LEN), "--output-len", str(OUTPUT_LEN), "--num-prompts", str(num_prompts),
        "--max-concurrency", str(streams), "--num-warmups", "2",
    )  # fmt: skip


def measure_throughput(model: str, rounds: int, streams: int) -> dict[str, Any]:
    """Return offline and served tokens a second of each round, and the ratios of the medians."""
    work = ("--input-len", str(INPUT_LEN), "--output-len", str(OUTPUT_LEN), "--num-prompts", str(2 * streams))
    offline, online, raw, shares = [], [], [], []
    for _ in range(rounds):
        figures = run_bench("throughput", "-m", model, *work, "--max-num-seqs", str(streams))
        offline.append(figures["output_tokens_per_s"])
        with served(model, streams) as (port, pid):
            before = loop_seconds(pid)
            figures = put_load(port, model, streams, 2 * streams)
            seconds = figures["total_s"] - figures["client_cpu_s"]
            online.append(figures["num_output_tokens"] / seconds)
            raw.append(figures["output_tokens_per_s"])
            shares.append((loop_seconds(pid) - before) / figures["num_output_tokens"])
    return {
        "offline_tokens_per_s": offline,
        "served_tokens_per_s": online,
        "raw_served_tokens_per_s": raw,
        "loop_us_per_token": [share * 1e6 for share in shares],
        "served_to_offline": statistics.median(online) / statistics.median(offline),
        "raw_served_to_offline": statistics.median(raw) / statistics.median(offline),
    }


def measure_lag(model: str, streams: int) -> dict[str, Any]:
    """Return percentiles of the time that pings take beside streams."""
    pings: list[float] = []
    with served(model, streams) as (port, _):
        is_over = threading.Event()

        def ping() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            while not is_over.wait(_PING_SECONDS):
                began = time.perf_counter()
                connection.request("GET", "/ping")
                connection.getresponse().read()
                pings.append(time.perf_counter() - began)

        thread = threading.Thread(target=ping)
        thread.start()
        put_load(port, model, streams, 2 * streams)
        is_over.set()
        thread.join()
    return {"num_pings": len(pings), "ping_ms": _percentiles_ms(pings)}


def measure_latency(model: str) -> dict[str, Any]:
    """Return percentiles of what HTTP, tokenising and the first event add to the engine's own time."""
    added = []
    with served(model, 4) as (port, _):
        body = json.dumps({"prompt": _PROMPT, "max_tokens": 2, "stream": True, "temperature": 0}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        before = _engine_seconds(port)
        for _ in range(_NUM_REQUESTS):
            began = time.perf_counter()
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.readline()
            first = time.perf_counter() - began
            response.read()
            after = _engine_seconds(port)
            added.append(first - (after - before))
            before = after
    return {"num_requests": len(added), "added_ms": _percentiles_ms(added)}


def _engine_seconds(port: int) -> float:
    text = get(port, "/metrics")[1].decode()
    match = re.search(rf"^{re.escape(_TTFT)}{{[^}}]*}} (\S+)", text, re.MULTILINE)
    assert match, "the server counts times to the first token"
    return float(match[1])


def _percentiles_ms(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3, "max": max(seconds) * 1e3}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "lag", "latency", "all"])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    given = parser.parse_args()
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "throughput": lambda: measure_throughput(given.model, given.rounds, given.streams),
        "lag": lambda: measure_lag(given.model, given.streams),
        "latency": lambda: measure_latency(given.model),
    }
    for name, measure in measures.items():
        if given.what in (name, "all"):
            print(json.dumps({name: measure()}), flush=True)


if __name__ == "__main__":
    main()
