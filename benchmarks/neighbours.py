"""Do hostile forms slow the neighbours down? A stream runs, forms arrive in every other second; prints JSON.

usage: python benchmarks/neighbours.py MODEL [ROUNDS]
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import httpx
import numpy as np

SECONDS = 3.0
"""Of each half of a round: without forms, and with them."""
_STREAM = {"prompt": "Count:", "max_tokens": 200, "ignore_eos": True, "temperature": 0, "stream": True}


def _deep(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": _deep(depth - 1)} if depth else {"type": "null"}


FORMS: dict[str, dict[str, Any]] = {
    "5 MB of values": {"json": {"enum": [f"{index:06}" * 2 for index in range(350_000)]}},
    "1 MB of schemas": {"json": {"anyOf": [{"type": "string", "minLength": index} for index in range(25_000)]}},
    "too large by little": {"json": {"enum": [f"{index:06}" for index in range(25_000)]}},
    "deep": {"json": _deep(63)},
    "2,000 references": {
        "json": {
            "$defs": {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(2000)},
            "$ref": "#/$defs/d0",
        }
    },
    "480 optional properties": {"json": {"type": "object", "properties": {str(i): True for i in range(480)}}},
    "endless compilation": {"json": {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(999)]}},
    "repetitions of repetitions": {"regex": "((a{1,100}){1,100}){1,100}"},
    "long loops": {"regex": "(.*a){900}"},
    "parentheses": {"grammar": "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000},
    "a rule of itself": {"grammar": "root ::= root"},
}


class Neighbour(threading.Thread):
    """Reads one stream after the other, and notes when something came."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self._url = url

    def run(self) -> None:
        """Read until the server ends."""
        with httpx.Client(timeout=600) as client, contextlib.suppress(httpx.HTTPError):
            while True:
                with client.stream("POST", f"{self._url}/v1/completions", json=_STREAM) as response:
                    for line in response.iter_lines():
                        if line.startswith("data: {"):
                            self.times.append(time.monotonic())

    def gaps_ms(self, start: float, end: float) -> list[float]:
        """Return the times between tokens of an interval."""
        times = [at for at in self.times if start <= at <= end]
        return [(later - earlier) * 1e3 for earlier, later in itertools.pairwise([start, *times, end])]


def _send(url: str, bodies: list[bytes], seconds: float, seen: Counter[int]) -> float:
    """Send forms one after the other; return the longest time that an answer took."""
    end, longest = time.monotonic() + seconds, 0.0
    with httpx.Client(timeout=60, headers={"Content-Type": "application/json"}) as client:
        for body in itertools.cycle(bodies):
            started = time.monotonic()
            if started >= end:
                return longest
            seen[client.post(f"{url}/v1/completions", content=body).status_code] += 1
            longest = max(longest, time.monotonic() - started)
    return longest


def measure(url: str, rounds: int) -> dict[str, Any]:
    """Return percentiles of the neighbour's gaps without and with forms, taken in turn."""
    bodies = [
        json.dumps({"prompt": "a", "max_tokens": 1, "structured_outputs": form}).encode() for form in FORMS.values()
    ]
    neighbour = Neighbour(url)
    neighbour.start()
    quiet: list[float] = []
    hostile: list[float] = []
    seen: Counter[int] = Counter()
    _send(url, [json.dumps({"prompt": "a", "structured_outputs": {"regex": "a"}}).encode()], 1.0, Counter())
    longest = 0.0
    for _ in range(rounds):
        started = time.monotonic()
        time.sleep(SECONDS)
        middle = time.monotonic()
        longest = max(longest, _send(url, bodies, SECONDS, seen))
        quiet += neighbour.gaps_ms(started, middle)
        hostile += neighbour.gaps_ms(middle, time.monotonic())
    figures = {}
    for name, share in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        alone, beside = np.percentile(quiet, share), np.percentile(hostile, share)
        figures[name] = {"quiet_ms": round(alone, 2), "hostile_ms": round(beside, 2), "ratio": round(beside / alone, 2)}
    return {"rounds": rounds, "gaps": figures, "answers": dict(seen), "longest_answer_s": round(longest, 2)}


def main() -> None:
    """Start a server, measure, stop it."""
    model, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", "--max-model-len", "512"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = next(filter(None, (re.search(r"running on (http://[\d.]+:\d+)", line) for line in server.stderr)))
        threading.Thread(target=server.stderr.read, daemon=True).start()
        print(json.dumps({"model": model, **measure(found[1], rounds)}))
        server.terminate()


if __name__ == "__main__":
    main()
