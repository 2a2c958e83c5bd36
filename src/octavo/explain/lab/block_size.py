"""`octavo lab block-size`: the same requests with blocks of 16 to 128 tokens: what is wasted, found again, and fast."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.explain.lab.compare import Arm, LabSettings, compare, on_answers
from octavo.explain.lab.report import LabReport
from octavo.explain.lab.session import LabEngine, LabRequest, LabRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCK_SIZES = (16, 32, 64, 128)
NUM_REQUESTS, NUM_SEATS = 16, 8
SHARED_LEN, OWN_MEDIAN, OUTPUT_MEDIAN, SIGMA = 120, 64, 48, 0.6
LENGTH_MOST = 192
_COLUMNS = ("output_tokens_per_s", "total_s", "waste_share", "cached_share", "rows_computed")


def run_block_size(settings: LabSettings) -> LabReport:
    """Run the experiment. Raises: `ConfigError`, `ModelLoadError`."""
    count, seats = settings.num_requests or NUM_REQUESTS, settings.max_num_seqs(NUM_SEATS)

    def make_requests(engine: LabEngine) -> Sequence[LabRequest]:
        rng = random.Random(settings.seed)
        shared = engine.random_prompt(SHARED_LEN, settings.seed)

        def length(median: int) -> int:
            return min(LENGTH_MOST, max(1, round(median * rng.lognormvariate(0.0, SIGMA))))

        return [
            LabRequest(
                [*shared, *engine.random_prompt(length(OWN_MEDIAN), settings.seed + index)], length(OUTPUT_MEDIAN)
            )
            for index in range(1, count + 1)
        ]

    arms = {str(size): Arm({"block_size": size, "enable_prefix_caching": True}) for size in BLOCK_SIZES}
    runs = compare(settings, arms, make_requests, max_model_len=512, max_num_seqs=seats)
    figures = {name: _figures(run) for name, run in runs.items()}
    return LabReport(
        title="Block sizes",
        workload=f"{count} requests at once that share {SHARED_LEN} prompt tokens, log-normal lengths of the rest "
        f"(median {OWN_MEDIAN} in, {OUTPUT_MEDIAN} out, sigma {SIGMA}); {seats} seats",
        policies=figures,
        columns=_COLUMNS,
        summary=f"{_summary(figures)} {on_answers(runs)}",
        draw=lambda figure: _draw(figure, figures),
    )


def _figures(run: LabRun) -> dict[str, Any]:
    """Waste is counted in the tables of requests: a block that several share counts for each of them."""
    allocated, stored = (sum(getattr(sample, name) for sample in run.samples) for name in ("allocated", "stored"))
    return {
        "output_tokens_per_s": run.output_tokens_per_s,
        "total_s": run.seconds,
        "waste_share": 1 - stored / allocated,
        "cached_share": run.num_cached_tokens / run.num_prompt_tokens,
        "rows_computed": sum(sample.num_tokens for sample in run.samples),
    }


def _summary(figures: Mapping[str, Mapping[str, Any]]) -> str:
    small, large = figures[str(BLOCK_SIZES[0])], figures[str(BLOCK_SIZES[-1])]
    return (
        f"Blocks of {BLOCK_SIZES[0]} leave {small['waste_share']:.1%} of the room in tables empty, and find "
        f"{small['cached_share']:.0%} of the prompt tokens in the cache; blocks of {BLOCK_SIZES[-1]} leave "
        f"{large['waste_share']:.1%} empty, and find {large['cached_share']:.0%}, since only full blocks are shared. "
        f"Speed: {small['output_tokens_per_s']:,.0f} against {large['output_tokens_per_s']:,.0f} tokens/s."
    )


def _draw(figure: Figure, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw waste, hits and speed by block size."""
    panels = figure.subplots(1, 3)
    keys = ("waste_share", "cached_share", "output_tokens_per_s")
    titles = ("% of the room in tables empty", "% of prompt tokens found", "output tokens/s")
    for axes, key, title in zip(panels, keys, titles, strict=True):
        factor = 100 if key.endswith("_share") else 1
        axes.bar(list(figures), [values[key] * factor for values in figures.values()])
        axes.set(xlabel="tokens in a block", title=title)
