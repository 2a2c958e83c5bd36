"""`octavo lab chunked-prefill`: long prompts beside answers that are being read, whole against cut in chunks.

Source: Agrawal et al. 2024, "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", arXiv:2403.02310.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.explain.lab.compare import Arm, LabSettings, compare, on_answers
from octavo.explain.lab.report import LabReport
from octavo.explain.lab.session import LabEngine, LabRequest, LabRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_STREAMS, NUM_PROMPTS = 4, 2
STREAM_LEN = 96
MAX_MODEL_LEN = 1280
_COLUMNS = ("output_tokens_per_s", "itl_p50_ms", "itl_p99_ms", "itl_max_ms", "prompt_first_token_s", "largest_step")


def run_chunked_prefill(settings: LabSettings) -> LabReport:
    """Run the experiment; `num_requests` is the number of streams. Raises: `ConfigError`, `ModelLoadError`."""
    streams, longest = settings.num_requests or NUM_STREAMS, settings.max_model_len(MAX_MODEL_LEN)
    prompt_len = longest * 4 // 5

    def make_requests(engine: LabEngine) -> Sequence[LabRequest]:
        reading = [
            LabRequest(engine.random_prompt(16, settings.seed + index), STREAM_LEN, is_streamed=True)
            for index in range(streams)
        ]
        arriving = [
            LabRequest(
                engine.random_prompt(prompt_len, settings.seed + streams + index),
                1,
                arrives_after=streams * STREAM_LEN * (1 + 2 * index) // (2 * NUM_PROMPTS + 1),
            )
            for index in range(NUM_PROMPTS)
        ]
        return [*reading, *arriving]

    arms = {
        "off": Arm({"enable_chunked_prefill": False, "max_num_batched_tokens": longest}),
        "on": Arm({"enable_chunked_prefill": True}),
    }
    runs = compare(settings, arms, make_requests, max_model_len=longest)
    figures = {name: _figures(run) for name, run in runs.items()}
    return LabReport(
        title="Chunked prefill off against on",
        workload=f"{streams} answers of {STREAM_LEN} tokens, read as they are made; beside them {NUM_PROMPTS} prompts "
        f"of {prompt_len:,} tokens arrive",
        policies=figures,
        columns=_COLUMNS,
        summary=f"{_summary(figures)} {on_answers(runs)}",
        draw=lambda figure: _draw(figure, runs),
    )


def _gaps(run: LabRun) -> list[float]:
    return [later - earlier for stamps in run.stamps for earlier, later in pairwise(stamps)]


def _figures(run: LabRun) -> dict[str, Any]:
    p50, p99, most = np.percentile(np.asarray(_gaps(run)) * 1e3, [50, 99, 100]).tolist()
    return {
        "output_tokens_per_s": run.output_tokens_per_s,
        "itl_p50_ms": p50,
        "itl_p99_ms": p99,
        "itl_max_ms": most,
        "prompt_first_token_s": float(np.mean(run.first_token_s[len(run.stamps) :])),
        "largest_step": max(sample.num_tokens for sample in run.samples),
        "total_s": run.seconds,
    }


def _summary(figures: Mapping[str, Mapping[str, Any]]) -> str:
    off, on = figures["off"], figures["on"]
    return (
        f"While a whole prompt was computed every reader waited: p99 between two tokens was "
        f"{off['itl_p99_ms']:,.0f} ms. In chunks it was {on['itl_p99_ms']:,.0f} ms, and the prompts' own first tokens "
        f"came after {on['prompt_first_token_s']:.2g} s instead of {off['prompt_first_token_s']:.2g} s."
    )


def _draw(figure: Figure, runs: Mapping[str, LabRun]) -> None:
    """Draw each gap between two tokens of a stream where it ended."""
    end = max(run.seconds for run in runs.values())
    panels = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        for stamps in run.stamps:
            gaps = [1e3 * (later - earlier) for earlier, later in pairwise(stamps)]
            axes.plot(stamps[1:], gaps, ".", markersize=3)
        axes.set(ylabel="ms between two tokens", yscale="log", xlim=(0, end))
        axes.set_title(f"chunked prefill {name}")
    panels[-1].set_xlabel("seconds")
