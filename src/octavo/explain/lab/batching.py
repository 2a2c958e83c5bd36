"""`octavo lab batching`: a batch that waits for its slowest member, against seats that are refilled at every step.

Static batching computes a row for each member of the batch until the longest answer is complete; what the others get
beyond theirs is thrown away. In between lies a batch that members may leave, and that nobody joins.

Source: Yu et al. 2022, "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.explain.lab.compare import Arm, LabSettings, compare, on_answers
from octavo.explain.lab.policies import StaticBatching
from octavo.explain.lab.report import LabReport
from octavo.explain.lab.session import LabEngine, LabRequest, LabRun
from octavo.frontend.build import EnginePolicies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_SEATS = 8
NUM_REQUESTS = 48
INPUT_LEN = 16
OUTPUT_MEDIAN, OUTPUT_SIGMA, OUTPUT_MOST = 32, 1.0, 256
_COLUMNS = ("output_tokens_per_s", "total_s", "num_steps", "mean_useful", "occupancy_share", "wasted_share")


def run_batching(settings: LabSettings) -> LabReport:
    """Run the experiment. Raises: `ConfigError`, `ModelLoadError`."""
    count, seats = settings.num_requests or NUM_REQUESTS, settings.max_num_seqs(NUM_SEATS)

    def make_requests(engine: LabEngine) -> Sequence[LabRequest]:
        rng = random.Random(settings.seed)
        lengths = [round(OUTPUT_MEDIAN * rng.lognormvariate(0.0, OUTPUT_SIGMA)) for _ in range(count)]
        return [
            LabRequest(engine.random_prompt(INPUT_LEN, settings.seed + index), min(max(length, 1), OUTPUT_MOST))
            for index, length in enumerate(lengths)
        ]

    closed = EnginePolicies(admission=StaticBatching)
    arms = {
        "static": Arm(policies=closed, prepare=partial(pad_batches, seats=seats)),
        "no-refill": Arm(policies=closed),
        "continuous": Arm(),
    }
    tokens = max(512, seats * INPUT_LEN)  # all prompts of a batch run in one step
    runs = compare(settings, arms, make_requests, max_num_seqs=seats, max_model_len=512, max_num_batched_tokens=tokens)
    figures = {name: _figures(run, seats) for name, run in runs.items()}
    return LabReport(
        title="Static against continuous batching",
        workload=f"{count} requests at once, {INPUT_LEN} tokens in, log-normal out (median {OUTPUT_MEDIAN}, sigma "
        f"{OUTPUT_SIGMA}, at most {OUTPUT_MOST}); {seats} seats",
        policies=figures,
        columns=_COLUMNS,
        summary=f"{_summary(figures)} {on_answers(runs)}",
        draw=lambda figure: _draw(figure, runs, seats),
    )


def pad_batches(requests: Sequence[LabRequest], seats: int) -> Sequence[LabRequest]:
    """Let every member of a batch generate for as long as the longest of them."""
    padded: list[LabRequest] = []
    for first in range(0, len(requests), seats):
        batch = requests[first : first + seats]
        longest = max(request.output_len for request in batch)
        padded += [replace(request, num_padding=longest - request.output_len) for request in batch]
    return padded


def _figures(run: LabRun, seats: int) -> dict[str, Any]:
    useful = sum(sample.num_useful for sample in run.samples)
    computed = sum(sample.num_running for sample in run.samples)
    return {
        "output_tokens_per_s": run.output_tokens_per_s,
        "total_s": run.seconds,
        "num_steps": len(run.samples),
        "mean_useful": useful / len(run.samples),
        "occupancy_share": useful / (seats * len(run.samples)),
        "wasted_share": 1 - useful / computed,
        "useful_requests": [sample.num_useful for sample in run.samples],
        "computed_requests": [sample.num_running for sample in run.samples],
        "began_s": [sample.began_at for sample in run.samples],
    }


def _summary(figures: Mapping[str, Mapping[str, Any]]) -> str:
    static, closed, continuous = (figures[name] for name in ("static", "no-refill", "continuous"))
    gain, left = (continuous["output_tokens_per_s"] / other["output_tokens_per_s"] for other in (static, closed))
    return (
        f"Continuous batching made {gain:.2f} times the tokens per second of static batching. A step of a static batch "
        f"had {static['mean_useful']:.1f} requests on average whose answer was not complete, and computed "
        f"{static['wasted_share']:.0%} of its rows for nothing. Where members leave when they are done, these rows are "
        f"saved, but seats stay empty ({closed['mean_useful']:.1f} taken): continuous batching, with "
        f"{continuous['mean_useful']:.1f}, was {left:.2f} times as fast."
    )


def _draw(figure: Figure, runs: Mapping[str, LabRun], seats: int) -> None:
    """Draw how many seats were taken over time, and by whom: one panel for each policy."""
    end = max(run.seconds for run in runs.values())
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        times = [*(sample.began_at for sample in run.samples), run.seconds]
        axes.stairs([sample.num_running for sample in run.samples], times, fill=True, color="0.8", label="padding")
        axes.stairs([sample.num_useful for sample in run.samples], times, fill=True, label="useful")
        axes.set(ylabel="rows of a step", ylim=(0, seats * 1.1), xlim=(0, end), yticks=(0, seats // 2, seats))
        axes.set_title(f"{name}: {run.output_tokens_per_s:,.0f} tokens/s")
    panels[0].legend(loc="upper right")
    panels[-1].set_xlabel("seconds")
