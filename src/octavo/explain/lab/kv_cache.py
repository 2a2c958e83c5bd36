"""`octavo lab kv-cache`: every token computed from all tokens before it, anew, against keys and values that are kept.

Without a cache, each token is a request of its own, whose prompt is everything so far, and of which nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from octavo.explain.lab.compare import LabSettings, on_answers
from octavo.explain.lab.report import LabReport
from octavo.explain.lab.session import LabEngine, LabRequest, LabRun, StepSample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT_LEN, OUTPUT_LEN = 32, 128
_COLUMNS = ("output_tokens_per_s", "total_s", "rows_computed", "first_ms", "last_ms")
_ENDS = 8
"""Tokens averaged at the beginning and at the end."""


def run_kv_cache(settings: LabSettings) -> LabReport:
    """Run the experiment; `num_requests` is the length of the answer. Raises: `ConfigError`, `ModelLoadError`."""
    length = settings.num_requests or OUTPUT_LEN
    longest = PROMPT_LEN + length
    options = {"max_model_len": longest, "max_num_batched_tokens": longest, **settings.options}
    runs: dict[str, LabRun] = {}
    with LabEngine(settings.model, options) as engine:
        prompt = engine.random_prompt(PROMPT_LEN, settings.seed)
        engine.run([LabRequest(prompt, 2)])
        for _ in range(settings.rounds):
            for name, answer in {"no-cache": _without_cache, "cache": _with_cache}.items():
                run = answer(engine, prompt, length)
                if name not in runs or run.seconds < runs[name].seconds:
                    runs[name] = run
    figures = {name: _figures(run) for name, run in runs.items()}
    return LabReport(
        title="No KV cache against a KV cache",
        workload=f"one request, {PROMPT_LEN} tokens in, {length} out",
        policies=figures,
        columns=_COLUMNS,
        summary=f"{_summary(figures, length)} {on_answers(runs)}",
        draw=lambda figure: _draw(figure, figures),
    )


def _with_cache(engine: LabEngine, prompt: list[int], length: int) -> LabRun:
    return engine.run([LabRequest(prompt, length, is_streamed=True)])


def _without_cache(engine: LabEngine, prompt: list[int], length: int) -> LabRun:
    """Answer token by token, and return all these runs as one."""
    answer: list[int] = []
    stamps: list[float] = []
    samples: list[StepSample] = []
    for _ in range(length):
        run = engine.run([LabRequest([*prompt, *answer], 1)])
        answer += run.token_ids[0]
        stamps.append((stamps[-1] if stamps else 0.0) + run.seconds)
        samples += run.samples
    return LabRun(stamps[-1], samples, [answer], [stamps], len(prompt), 0, 0, [stamps[0]])


def _figures(run: LabRun) -> dict[str, Any]:
    (stamps,) = run.stamps
    gaps = [later - earlier for earlier, later in pairwise(stamps)]
    ends = min(_ENDS, len(gaps))
    return {
        "output_tokens_per_s": run.output_tokens_per_s,
        "total_s": run.seconds,
        "rows_computed": sum(sample.num_tokens for sample in run.samples),
        "first_ms": 1e3 * sum(gaps[:ends]) / ends if ends else None,
        "last_ms": 1e3 * sum(gaps[-ends:]) / ends if ends else None,
        "token_s": stamps,
    }


def _summary(figures: Mapping[str, Mapping[str, Any]], length: int) -> str:
    without, cached = figures["no-cache"], figures["cache"]
    return (
        f"{length} tokens took {cached['rows_computed']:,} computed rows with the cache: the prompt once, then one for "
        f"each token. Without it, {without['rows_computed']:,}: that grows with the square of the length, and so does "
        f"the time, {without['total_s']:.2g} s against {cached['total_s']:.2g} s."
    )


def _draw(figure: Figure, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the time of each token, and that of all so far."""
    left, right = figure.subplots(1, 2)
    for name, values in figures.items():
        stamps = values["token_s"]
        gaps = [1e3 * (later - earlier) for earlier, later in pairwise(stamps)]
        left.plot(range(2, len(stamps) + 1), gaps, ".", markersize=3, label=name)
        right.plot(range(1, len(stamps) + 1), stamps, label=name)
    left.set(xlabel="token", ylabel="ms for this token", ylim=(0, None))
    right.set(xlabel="token", ylabel="seconds until this token", ylim=(0, None))
    left.legend()
