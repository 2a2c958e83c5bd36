"""From recorded steps and finished requests to figures: pure functions, the same numbers for the same records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.bench.recorder import StepRecord
from octavo.bench.step_work import Work
from octavo.native.peaks import ThreadPeaks


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a set of measurements, with straight lines between neighbours."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request.

    Units: seconds of one monotonic clock.
    """

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    queued_at: float
    first_token_at: float
    last_token_at: float


@dataclass(frozen=True, slots=True)
class Job:
    """What was measured: the steps of the engine, the requests they served, and the time of the whole."""

    steps: Sequence[StepRecord]
    requests: Sequence[RequestRecord]
    seconds: float


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What the JSON holds. None where nothing of the kind happened."""

    total_s: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    """Prompt and output tokens."""
    prefill_tokens_per_s: float | None
    """Prompt tokens over the time of the steps that hold only prompt rows."""
    decode_tokens_per_s: float | None
    """Decoded tokens over the time of the steps that hold only decode rows."""
    ttft_ms: Percentiles | None
    """From arrival to the first token; in a job that arrives all at once this is mostly waiting."""
    tpot_ms: Percentiles | None
    """Of each request, the mean time between two tokens."""
    itl_ms: Percentiles | None
    """Of each decoded token, the time of its step: what a reader waits for the next token."""
    num_steps: int
    python_share: float | None
    """1 - native time / loop time, of decode steps that follow a step (of all such steps if there is none)."""
    num_preemptions: int
    num_cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    fraction_of_int8_peak: float | None
    """8-bit integer operations of all steps over what the machine can do in their time. None without such weights."""
    fraction_of_fp32_peak: float | None
    """The same for all other arithmetic and the fp32 peak."""
    fraction_of_memory_bandwidth: float | None
    """Bytes that all steps move at least, over what can be read in their time from a working set of a step's size."""


def job_figures(job: Job, work_of: Callable[[StepRecord], Work], peaks: ThreadPeaks) -> JobFigures:
    """Work out all figures of a job.

    Args:
        work_of: the least work of a step.
        peaks: of the threads that the engine used.
    """
    num_prompt = sum(request.num_prompt_tokens for request in job.requests)
    num_output = sum(request.num_output_tokens for request in job.requests)
    int8, fp32, memory = fractions_of_peaks(job.steps, work_of, peaks)
    return JobFigures(
        total_s=job.seconds,
        num_requests=len(job.requests),
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        requests_per_s=len(job.requests) / job.seconds,
        output_tokens_per_s=num_output / job.seconds,
        total_tokens_per_s=(num_prompt + num_output) / job.seconds,
        prefill_tokens_per_s=tokens_per_s(step for step in job.steps if step.is_prefill),
        decode_tokens_per_s=tokens_per_s(step for step in job.steps if step.is_decode),
        ttft_ms=percentiles_ms([request.first_token_at - request.queued_at for request in job.requests]),
        tpot_ms=percentiles_ms(
            [
                (request.last_token_at - request.first_token_at) / (request.num_output_tokens - 1)
                for request in job.requests
                if request.num_output_tokens > 1
            ]
        ),
        itl_ms=percentiles_ms([step.loop_seconds for step in job.steps for _ in range(step.num_decode_tokens)]),
        num_steps=len(job.steps),
        python_share=python_share(job.steps),
        num_preemptions=sum(request.num_preemptions for request in job.requests),
        num_cached_tokens=sum(request.num_cached_tokens for request in job.requests),
        fraction_of_int8_peak=int8,
        fraction_of_fp32_peak=fp32,
        fraction_of_memory_bandwidth=memory,
    )


def tokens_per_s(steps: Iterable[StepRecord]) -> float | None:
    """Return the rows of some steps over their time; None if there are none."""
    chosen = list(steps)
    seconds = sum(step.loop_seconds for step in chosen)
    return sum(step.num_tokens for step in chosen) / seconds if seconds > 0 else None


def python_share(steps: Sequence[StepRecord]) -> float | None:
    """Return the share of the loop that is not native code, in steady state: decode steps that follow a step."""
    following = [step for step in steps if step.follows]
    steady = [step for step in following if step.is_decode] or following
    seconds = sum(step.loop_seconds for step in steady)
    return 1.0 - sum(step.native_seconds for step in steady) / seconds if seconds > 0 else None


def fractions_of_peaks(
    steps: Sequence[StepRecord], work_of: Callable[[StepRecord], Work], peaks: ThreadPeaks
) -> tuple[float | None, float | None, float | None]:
    """Return how much of the int8 peak, the fp32 peak and the memory bandwidth some steps used."""
    seconds = sum(step.loop_seconds for step in steps)
    if seconds <= 0:
        return None, None, None
    work = sum(map(work_of, steps), Work())
    bandwidth = peaks.read_bandwidth(work.bytes / len(steps))
    return (
        work.int8_ops / seconds / peaks.int8_ops_per_s if work.int8_ops else None,
        work.fp32_flops / seconds / peaks.fp32_flops_per_s,
        work.bytes / seconds / bandwidth,
    )


def percentiles_ms(seconds: Sequence[float]) -> Percentiles | None:
    """Return percentiles in milliseconds; None of nothing."""
    if not seconds:
        return None
    p50, p90, p99 = np.percentile(np.asarray(seconds) * 1e3, [50, 90, 99]).tolist()
    return Percentiles(p50, p90, p99)
