"""Runs work on one engine and prints what it took, as JSON on the last line of stdout.

Shared by the adapters beside it, which run in environments of their own: the standard library only.
usage of an adapter: python ADAPTER.py JOB.json STARTED_AT, where STARTED_AT is the parent's monotonic clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

TokenIds = list[int]


class Engine(Protocol):
    """An engine that is loaded."""

    version: str

    def generate(self, prompts: list[TokenIds], output_lens: list[int]) -> int:
        """Generate greedily, past any end of text; return the number of tokens made in all."""
        ...


def main(load: Callable[[dict[str, Any]], Engine]) -> None:
    """Load the engine that the job describes, do its work, print the results."""
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    started_at = float(sys.argv[2])
    engine = load(job)
    ready_s = time.monotonic() - started_at
    first = job["first"]
    engine.generate([first], [1])
    first_token_s = time.monotonic() - started_at
    engine.generate([first], [16])
    figures = {work["name"]: _MEASURES[work["kind"]](engine, work) for work in job["work"]}
    print(
        json.dumps({"version": engine.version, "ready_s": ready_s, "first_token_s": first_token_s, "figures": figures}),
        flush=True,
    )


def _prefill(engine: Engine, work: dict[str, Any]) -> float:
    """Return prompt tokens per second of prompts that give one token each, one at a time."""
    return median(len(prompt) / _seconds(engine, [prompt], 1)[0] for prompt in work["prompts"])


def _decode(engine: Engine, work: dict[str, Any]) -> float:
    """Return decoded tokens per second of a batch: what the tokens after the first of each request add to the time."""
    prompts, output_len = work["prompts"], work["output_len"]
    half = len(prompts) // 2
    short, _ = _seconds(engine, prompts[:half], 1)
    long, num_tokens = _seconds(engine, prompts[half:], output_len)
    return (num_tokens - half) / (long - short)


def _job(engine: Engine, work: dict[str, Any]) -> float:
    """Return output tokens per second of a whole job."""
    started = time.monotonic()
    num_tokens = engine.generate(work["prompts"], work["output_lens"])
    seconds = time.monotonic() - started
    expected = sum(work["output_lens"])
    if num_tokens != expected:
        raise SystemExit(f"{work['name']}: {num_tokens} tokens came, {expected} were asked for")
    return num_tokens / seconds


def _seconds(engine: Engine, prompts: list[TokenIds], output_len: int) -> tuple[float, int]:
    started = time.monotonic()
    num_tokens = engine.generate(prompts, [output_len] * len(prompts))
    return time.monotonic() - started, num_tokens


_MEASURES = {"prefill": _prefill, "decode": _decode, "job": _job}
