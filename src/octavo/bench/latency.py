"""`octavo bench latency`: one batch, run again and again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.bench.figures import Job
from octavo.bench.report import Report
from octavo.bench.session import BenchSession
from octavo.bench.throughput import job_report
from octavo.bench.workload import WorkItem, Workload
from octavo.errors import ConfigError

_PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class LatencyRuns:
    """How often one batch is run.

    Raises: `ConfigError` for values that mean nothing.
    """

    batch_size: int = 8
    num_iters: int = 10
    num_iters_warmup: int = 3

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_iters", 1), ("num_iters_warmup", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}.")


def run_latency(
    model: str,
    options: dict[str, Any],
    runs: LatencyRuns,
    *,
    input_len: int,
    output_len: int,
    seed: int = 0,
    show_progress: bool = False,
) -> Report:
    """Load a model, run one batch several times and report. Each run has prompts of its own.

    Args:
        options: of the engine.

    Raises: `ConfigError`, `ModelLoadError`, `RequestError`.
    """
    num_runs = runs.num_iters_warmup + runs.num_iters
    workload = Workload(input_len=input_len, output_len=output_len, num_prompts=runs.batch_size * num_runs, seed=seed)
    with BenchSession(model, options) as session:
        items = workload.items(session.llm.get_tokenizer(), session.max_model_len)
        batches = [items[start : start + runs.batch_size] for start in range(0, len(items), runs.batch_size)]
        for batch in batches[: runs.num_iters_warmup]:
            session.run(batch)
        jobs = _run_all(session, batches[runs.num_iters_warmup :], show_progress)
        seconds = [job.seconds for job in jobs]
        named = {f"p{percent}": float(np.percentile(seconds, percent)) for percent in _PERCENTILES}
        described = {
            "batch_size": runs.batch_size,
            "num_iters": runs.num_iters,
            "num_iters_warmup": runs.num_iters_warmup,
            "input_len": input_len,
            "output_len": output_len,
            "seed": seed,
        }
        more = {"avg_latency_s": sum(seconds) / len(seconds), "latency_s": named}
        return job_report("latency", session, _joined(jobs), described, **more)


def _run_all(session: BenchSession, batches: list[list[WorkItem]], show_progress: bool) -> list[Job]:
    from tqdm import tqdm

    return [
        session.run(batch) for batch in tqdm(batches, desc="Batches", disable=not show_progress, dynamic_ncols=True)
    ]


def _joined(jobs: list[Job]) -> Job:
    """Return all runs as one job."""
    whole = jobs[0]
    for job in jobs[1:]:
        whole = replace(
            whole,
            steps=[*whole.steps, *job.steps],
            requests=[*whole.requests, *job.requests],
            seconds=whole.seconds + job.seconds,
        )
    return whole
