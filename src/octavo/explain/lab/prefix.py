"""`octavo lab prefix`: prompts that begin alike, each computed in full, against blocks that are found and shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.explain.lab.compare import Arm, LabSettings, compare, on_answers
from octavo.explain.lab.report import LabReport
from octavo.explain.lab.session import LabEngine, LabRequest, LabRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_REQUESTS, NUM_SEATS = 16, 4
SHARED_LEN, OWN_LEN, OUTPUT_LEN = 256, 16, 16
_COLUMNS = (
    "output_tokens_per_s", "total_s", "rows_computed", "cached_share", "first_token_p50_ms", "most_blocks",
)  # fmt: skip


def run_prefix(settings: LabSettings) -> LabReport:
    """Run the experiment. Raises: `ConfigError`, `ModelLoadError`."""
    count, seats = settings.num_requests or NUM_REQUESTS, settings.max_num_seqs(NUM_SEATS)

    def make_requests(engine: LabEngine) -> Sequence[LabRequest]:
        shared = engine.random_prompt(SHARED_LEN, settings.seed)
        own = [engine.random_prompt(OWN_LEN, settings.seed + 1 + index) for index in range(count)]
        return [LabRequest([*shared, *tokens], OUTPUT_LEN) for tokens in own]

    arms = {"off": Arm({"enable_prefix_caching": False}), "on": Arm({"enable_prefix_caching": True})}
    runs = compare(settings, arms, make_requests, max_model_len=512, max_num_seqs=seats)
    figures = {name: _figures(run) for name, run in runs.items()}
    return LabReport(
        title="Prefix caching off against on",
        workload=f"{count} requests at once that share {SHARED_LEN} of {SHARED_LEN + OWN_LEN} prompt tokens, "
        f"{OUTPUT_LEN} out; {seats} seats",
        policies=figures,
        columns=_COLUMNS,
        summary=f"{_summary(figures)} {on_answers(runs)}",
        draw=lambda figure: _draw(figure, runs),
    )


def _figures(run: LabRun) -> dict[str, Any]:
    return {
        "output_tokens_per_s": run.output_tokens_per_s,
        "total_s": run.seconds,
        "rows_computed": sum(sample.num_tokens for sample in run.samples),
        "cached_share": run.num_cached_tokens / run.num_prompt_tokens,
        "first_token_p50_ms": 1e3 * float(np.median(run.first_token_s)),
        "most_blocks": max(sample.num_used_blocks for sample in run.samples),
    }


def _summary(figures: Mapping[str, Mapping[str, Any]]) -> str:
    off, on = figures["off"], figures["on"]
    return (
        f"{on['cached_share']:.0%} of the prompt tokens were found in the cache, so {on['rows_computed']:,} rows were "
        f"computed instead of {off['rows_computed']:,}, and at most {on['most_blocks']:,} blocks were in use instead "
        f"of {off['most_blocks']:,}: {off['total_s'] / on['total_s']:.2f} times as fast."
    )


def _draw(figure: Figure, runs: Mapping[str, LabRun]) -> None:
    """Draw how the rows computed and the blocks in use grow over time."""
    left, right = figure.subplots(1, 2)
    for name, run in runs.items():
        times = [sample.ended_at for sample in run.samples]
        left.plot(times, np.cumsum([sample.num_tokens for sample in run.samples]), label=f"prefix caching {name}")
        right.step(times, [sample.num_used_blocks for sample in run.samples], where="pre")
    left.set(xlabel="seconds", ylabel="rows computed so far", ylim=(0, None))
    right.set(xlabel="seconds", ylabel="blocks in use", ylim=(0, None))
    left.legend()
