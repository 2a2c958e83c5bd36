"""`octavo lab memory`: room for the longest answer set aside for everyone, against blocks taken as they are needed.

Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention",
arXiv:2309.06180, section 3 and figure 2.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.explain.lab.compare import Arm, LabSettings, compare, on_answers
from octavo.explain.lab.policies import exact_length, longest_allowed, next_power_of_two, reservation
from octavo.explain.lab.report import LabReport
from octavo.explain.lab.session import LabEngine, LabRequest, LabRun
from octavo.frontend.build import EnginePolicies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from octavo.core.request import Request

MAX_MODEL_LEN = 2048
NUM_REQUESTS = 24
SIGMA = 0.6
BLOCK_SIZE = 16
_COLUMNS = (
    "output_tokens_per_s", "mean_requests", "num_preemptions", "used_share", "to_come_share", "internal_share",
    "waste_share",
)  # fmt: skip


def run_memory(settings: LabSettings) -> LabReport:
    """Run the experiment. Raises: `ConfigError`, `ModelLoadError`."""
    count, longest = settings.num_requests or NUM_REQUESTS, settings.max_model_len(MAX_MODEL_LEN)
    input_median, output_median = longest * 3 // 32, longest * 3 // 64

    def make_requests(engine: LabEngine) -> Sequence[LabRequest]:
        rng = random.Random(settings.seed)

        def length(median: int) -> int:
            return min(median * 4, max(1, round(median * rng.lognormvariate(0.0, SIGMA))))

        prompts = [engine.random_prompt(length(input_median), settings.seed + index) for index in range(count)]
        return [LabRequest(prompt, length(output_median)) for prompt in prompts]

    def reserving(tokens: Callable[[Request, int], int]) -> Arm:
        return Arm(policies=EnginePolicies(cache_manager=reservation(tokens, longest)))

    arms = {
        "reserve-max": reserving(longest_allowed),
        "reserve-pow2": reserving(next_power_of_two),
        "reserve-exact": reserving(exact_length),
        "paged": Arm(),
    }
    options = {"max_num_seqs": 64, "block_size": BLOCK_SIZE, "num_gpu_blocks_override": 2 * longest // BLOCK_SIZE}
    runs = compare(settings, arms, make_requests, max_model_len=longest, **options)
    figures = {name: _figures(run) for name, run in runs.items()}
    return LabReport(
        title="Contiguous reservation against paged blocks",
        workload=f"{count} requests at once, log-normal lengths (median {input_median} in, {output_median} out, sigma "
        f"{SIGMA}); a cache of {2 * longest:,} tokens, max_model_len {longest:,}",
        policies=figures,
        columns=_COLUMNS,
        summary=f"{_summary(figures, longest)} {on_answers(runs)}",
        draw=lambda figure: _draw(figure, figures),
    )


def _figures(run: LabRun) -> dict[str, Any]:
    """Average over the steps in which somebody waits: the cache is wanted, and its waste costs something."""
    steps = [sample for sample in run.samples if sample.num_waiting] or run.samples
    allocated = sum(sample.allocated for sample in steps)
    stored, to_come = (sum(getattr(sample, name) for sample in steps) / allocated for name in ("stored", "to_come"))
    return {
        "output_tokens_per_s": run.output_tokens_per_s,
        "mean_requests": sum(sample.num_running for sample in steps) / len(steps),
        "most_requests": max(sample.num_running for sample in steps),
        "used_share": stored,
        "to_come_share": to_come,
        "internal_share": max(0.0, 1 - stored - to_come),
        "waste_share": 1 - stored,
        "num_preemptions": run.num_preemptions,
    }


def _summary(figures: Mapping[str, Mapping[str, Any]], longest: int) -> str:
    most, paged = figures["reserve-max"], figures["paged"]
    return (
        f"With room for {longest:,} tokens set aside for each, {most['waste_share']:.0%} of the memory held "
        f"nothing, and {most['mean_requests']:.1f} requests ran at once. In blocks of {BLOCK_SIZE}, "
        f"{paged['waste_share']:.1%} held nothing, all of it in last blocks, and {paged['mean_requests']:.1f} ran."
    )


def _draw(figure: Figure, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw what a cache full of requests holds, a bar for each policy: figure 2 of the paper."""
    axes = figure.subplots()
    names, bottom = list(figures), [0.0] * len(figures)
    parts = {"keys and values": "used_share", "set aside for later": "to_come_share", "never used": "internal_share"}
    for (label, key), shade in zip(parts.items(), ("C0", "0.7", "0.88"), strict=True):
        shares = [figures[name][key] * 100 for name in names]
        axes.bar(names, shares, bottom=bottom, label=label, color=shade)
        bottom = [below + share for below, share in zip(bottom, shares, strict=True)]
    for index, name in enumerate(names):
        axes.text(index, 101, f"{figures[name]['mean_requests']:.1f} requests", ha="center", va="bottom")
    axes.set(ylabel="% of the memory that requests hold", ylim=(0, 118))
    axes.legend(loc="upper center", ncols=3, frameon=False)
