"""`octavo bench throughput`: many requests at once, until all are done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from octavo.bench.figures import Job, JobFigures, job_figures
from octavo.bench.report import Report, format_facts, make_recipe, peaks_as_json
from octavo.bench.session import BenchSession
from octavo.bench.workload import Workload
from octavo.frontend.machine import peak_rss_bytes

if TYPE_CHECKING:
    from octavo.llm import LLM


def run_throughput(
    model: str,
    options: dict[str, Any],
    workload: Workload,
    *,
    temperature: float = 0.0,
    show_progress: bool = False,
    watch: Callable[[LLM], AbstractContextManager[object]] | None = None,
) -> Report:
    """Load a model, serve a workload and report.

    Args:
        options: of the engine.
        watch: is entered while the workload runs, to look on.

    Raises: `ConfigError`, `ModelLoadError`, `RequestError`.
    """
    with BenchSession(model, options) as session:
        tokenizer, max_model_len = session.llm.get_tokenizer(), session.max_model_len
        items = workload.items(tokenizer, max_model_len)
        session.check_room(items)  # before a warm-up that may take a minute
        session.warm_up(workload.for_warm_up(1).items(tokenizer, max_model_len)[0])
        with watch(session.llm) if watch is not None else nullcontext():
            job = session.run(items, temperature=temperature, show_progress=show_progress)
        described = {**asdict(workload), "num_prompts": len(items), "temperature": temperature}
        return job_report("throughput", session, job, described)


def job_report(benchmark: str, session: BenchSession, job: Job, workload: dict[str, Any], **more: Any) -> Report:
    """Return the report of a job that a session has just run, beside the peaks of this moment.

    Args:
        more: further figures.
    """
    peak_rss = peak_rss_bytes()  # before the peaks, whose measurement takes memory of its own
    peaks = session.measure_peaks()
    figures = job_figures(job, session.work_model.of, peaks)
    described = {**workload, "prefix_caching": session.config.enable_prefix_caching}
    recipe = make_recipe(
        session.config, num_threads=session.built.num_threads, isa=session.built.isa, workload=described
    )
    cache = session.llm.kv_cache_stats()
    return Report(
        benchmark,
        recipe,
        {
            **asdict(figures),
            **more,
            "peak_rss_bytes": peak_rss,
            "kv_cache": asdict(cache),
            "peaks": peaks_as_json(peaks),
        },
        f"{_table(session, figures, peak_rss, more)}\n{cache.summary()}",
    )


def _table(session: BenchSession, figures: JobFigures, peak_rss: int, more: dict[str, Any]) -> str:
    share = figures.python_share
    return format_facts(
        [
            ("model", session.config.model),
            ("threads, ISA level", f"{session.built.num_threads}, {session.built.isa}"),
            ("requests", figures.num_requests),
            ("prompt, output tokens in all", f"{figures.num_prompt_tokens:,}, {figures.num_output_tokens:,}"),
            ("total s", figures.total_s),
            ("requests/s", figures.requests_per_s),
            ("output tokens/s", figures.output_tokens_per_s),
            ("total tokens/s", figures.total_tokens_per_s),
            ("prefill tokens/s", figures.prefill_tokens_per_s),
            ("decode tokens/s", figures.decode_tokens_per_s),
            ("first token ms", figures.ttft_ms),
            ("per output token ms", figures.tpot_ms),
            ("between tokens ms", figures.itl_ms),
            *((name.replace("_", " "), value) for name, value in more.items()),
            ("steps", figures.num_steps),
            ("Python's share", None if share is None else f"{share:.1%}"),
            ("of int8 peak", _percent(figures.fraction_of_int8_peak)),
            ("of fp32 peak", _percent(figures.fraction_of_fp32_peak)),
            ("of memory bandwidth", _percent(figures.fraction_of_memory_bandwidth)),
            ("peak memory MB", peak_rss / 1e6),
        ]
    )


def _percent(fraction: float | None) -> str | None:
    return None if fraction is None else f"{fraction:.1%}"
