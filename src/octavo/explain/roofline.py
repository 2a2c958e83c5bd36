"""`octavo roofline`: what each op of a model's step must do at least, what the machine allows for it, what it took.

The work comes from the model's own program, the time from a clock in the executor, read at the end of each stage. Ops
that the executor computes together, in one stage, share a row: nobody could say which of them took how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.bench.step_work import Work
from octavo.bench.steps import LoadedProgram, decode_step, load_program
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.explain.machines import Machine, published_machine
from octavo.explain.roofline_limits import Limits, MeasuredLimits, PublishedLimits, best_peaks, first_not_shorter
from octavo.explain.roofline_words import sentences
from octavo.native import default_num_threads, kernels
from octavo.native.peaks import READ_SIZES, PeakMeter
from octavo.program.cost import StepShape, program_costs
from octavo.program.lowering import lower
from octavo.program.moe_ops import Moe, Route
from octavo.program.ops import GatherRows, Linear, PagedAttention
from octavo.runner.isolation import op_classes
from octavo.runner.step_timer import StageTimes
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.program.cost import OpCost
    from octavo.program.ops import Op

DEFAULT_BATCH_SIZES = (1, 8, 32, 256, 512)
CHOICE = "choose tokens"
"""The row of what follows the program: the most probable token of each logit row."""


@dataclass(frozen=True, slots=True)
class RooflineSteps:
    """Which steps to look at: one token for each of so many requests. Raises: `ConfigError`."""

    batch_sizes: tuple[int, ...] = DEFAULT_BATCH_SIZES
    context_len: int = 128
    """Tokens of each request, the new one included."""
    min_seconds: float = 0.3
    """Time spent on each step, at least."""

    def __post_init__(self) -> None:
        if not self.batch_sizes or not 1 <= min(self.batch_sizes) <= max(self.batch_sizes) <= 4096:
            raise ConfigError(f"batch_sizes must be numbers in [1, 4096], got {list(self.batch_sizes)}.")
        if not 1 <= self.context_len <= 1 << 17:
            raise ConfigError(f"context_len must be in [1, {1 << 17}], got {self.context_len}.")
        if not 0.0 <= self.min_seconds <= 60.0:
            raise ConfigError(f"min_seconds must be in [0, 60], got {self.min_seconds}.")


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """Ops of one kind in one step, over all layers. Ops that are computed together are one row."""

    op: str
    count: int
    """How often: one for each layer, mostly."""
    flops: int
    bytes: int
    intensity: float
    """Operations for each byte."""
    compute_s: float
    memory_s: float
    limit_s: float
    """What the machine needs at least: the longer of the two."""
    bound: str
    """Which it is: "compute" or "memory"."""
    took_s: float | None
    """None where the machine is not this one."""
    fraction_of_limit: float | None
    """`limit_s` over `took_s`."""


@dataclass(frozen=True, slots=True)
class RooflineStep:
    """One step: its rows, and their sums."""

    batch_size: int
    context_len: int
    rows: Sequence[RooflineRow]
    flops: int
    bytes: int
    intensity: float
    attention_intensity: float | None
    """Of attention alone. None for a model without."""
    limit_s: float
    sum_s: float | None
    """Of the times of all rows."""
    step_s: float | None
    """Of the step as a whole, by a clock around it."""
    fraction_of_limit: float | None


@dataclass(frozen=True, slots=True)
class RooflineReport:
    """All steps, and what follows from them."""

    model: str
    machine: str
    steps: Sequence[RooflineStep]
    compute_bound_batch_size: int | None
    """From which B on the products of a step take longer to compute than their weights take to read."""
    attention_bound_context_len: int | None
    """From how many tokens of context on attention takes longer than the products, in the largest of the batches."""
    summary: Sequence[str]


def run_roofline(model: str, options: dict[str, Any], steps: RooflineSteps, machine: str | None) -> RooflineReport:
    """Load a model and work out its steps; on this machine, measure them too.

    Args:
        options: of the engine.
        machine: of the table of published peaks; None for this one.

    Raises: `ConfigError`, `ModelLoadError`.
    """
    device = None if machine is None else published_machine(machine)
    loaded = load_program(EngineConfig(model, **options), longest=steps.context_len)
    view = ProgramView(loaded)
    shapes = [decode_step(size, steps.context_len) for size in steps.batch_sizes]
    limits: Limits
    times: Sequence[StageTimes | None]
    if device is not None:
        limits, times = PublishedLimits(device), [None] * len(shapes)
    else:
        limits, times = measure(loaded, shapes, steps.min_seconds)
    done = [view.step(shape, limits, time) for shape, time in zip(shapes, times, strict=True)]
    knee, context = (
        view.compute_bound_batch_size(limits),
        view.attention_bound_context_len(limits, max(steps.batch_sizes)),
    )
    return RooflineReport(model, limits.title, done, knee, context, sentences(done, knee, context))


def measure(
    loaded: LoadedProgram, shapes: Sequence[StepShape], min_seconds: float
) -> tuple[MeasuredLimits, list[StageTimes]]:
    """Return what this machine allows, and what the stages of each step take. Peaks are measured beside each step."""
    meter, pools = PeakMeter(loaded.num_threads), loaded.cache_pools(shapes)
    peaks, times = [meter.measure()], []
    with loaded.timer(loaded.program, loaded.weights, shapes=shapes, pools=pools) as timer:
        for shape in shapes:
            times.append(timer.stage_seconds(shape, at_least=min_seconds))
            peaks.append(meter.measure())
    return MeasuredLimits(best_peaks(peaks), str(kernels().isa)), times


def this_machine() -> Machine:
    """Return this machine as one of the table: floats of any width are computed as float32 here."""
    peaks = PeakMeter(default_num_threads()).measure()
    floats = dict.fromkeys(("float32", "bfloat16", "float16"), peaks.fp32_flops_per_s)
    source = f"measured now, {counted(peaks.num_threads, 'thread')}, {kernels().isa}"
    bandwidth = peaks.read_bandwidth(READ_SIZES[-1])
    return Machine("this", "This machine", {**floats, "int8": peaks.int8_ops_per_s}, bandwidth, source)


class ProgramView:
    """A loaded program as rows: ops that share a stage together, those of all layers in one."""

    def __init__(self, loaded: LoadedProgram) -> None:
        self._program, self._work_model = loaded.program, loaded.work_model
        self._ops: Sequence[Op] = (*loaded.program.body, *loaded.program.head)
        lowered = lower(loaded.program, loaded.weights, activation_quantization=loaded.activation_quantization)
        labels = _labels(self._ops, loaded)
        rows: dict[str, list[tuple[int, ...]]] = {}
        for group in _groups(lowered.stage_ops, len(self._ops)):
            rows.setdefault(" + ".join(dict.fromkeys(labels[index] for index in group)), []).append(group)
        self._rows: Mapping[str, Sequence[tuple[int, ...]]] = rows
        self._row_of_op = {index: name for name, groups in rows.items() for group in groups for index in group}

    def step(self, shape: StepShape, limits: Limits, times: StageTimes | None) -> RooflineStep:
        """Return one step, with times if there are any."""
        costs = self._costs(shape, limits)
        total = sum(map(self._work_model.of_op, costs), Work())
        took = None if times is None else self._took(times)
        rows = [
            self._row(name, groups, costs, limits, total.bytes, None if took is None else took[name])
            for name, groups in self._rows.items()
        ]
        logits = Work(bytes=limits.activation_bytes * shape.num_logit_rows * self._program.vocab_size)
        rows.append(_row(CHOICE, 1, logits, limits, logits.bytes, None if took is None else took[CHOICE]))
        attention = [cost for cost in costs if isinstance(cost.op, PagedAttention)]
        limit = sum(row.limit_s for row in rows)
        flops, num_bytes = sum(row.flops for row in rows), sum(row.bytes for row in rows)
        return RooflineStep(
            batch_size=len(shape.query_lens),
            context_len=max(shape.seq_lens),
            rows=rows,
            flops=flops,
            bytes=num_bytes,
            intensity=flops / num_bytes,
            attention_intensity=_intensity(attention) if attention else None,
            limit_s=limit,
            sum_s=None if times is None else sum(times.stage_seconds),
            step_s=None if times is None else times.step_seconds,
            fraction_of_limit=None if times is None else limit / times.step_seconds,
        )

    def compute_bound_batch_size(self, limits: Limits) -> int | None:
        """Return from which B on a step's products take longer to compute than to read and write."""
        return first_not_shorter(lambda size: self._product_seconds(decode_step(size, 1), limits), 1 << 14)

    def attention_bound_context_len(self, limits: Limits, batch_size: int) -> int | None:
        """Return from how many tokens of context on attention takes longer than the products, as limits allow."""

        def seconds(context_len: int) -> tuple[float, float]:
            shape = decode_step(batch_size, context_len)
            return self._attention_seconds(shape, limits), max(self._product_seconds(shape, limits))

        return first_not_shorter(seconds, self._program.max_model_len)

    def _costs(self, shape: StepShape, limits: Limits) -> list[OpCost]:
        weight_bytes, activation_bytes = self._work_model.weight_bytes, limits.activation_bytes
        return program_costs(self._program, shape, weight_bytes, activation_bytes=activation_bytes)

    def _took(self, times: StageTimes) -> dict[str, float]:
        took = dict.fromkeys(self._rows, 0.0)
        for ops, seconds in zip(times.stage_ops, times.stage_seconds, strict=False):
            took[self._row_of_op[ops[0]]] += seconds
        return {**took, CHOICE: times.stage_seconds[-1]}

    def _row(
        self,
        name: str,
        groups: Sequence[tuple[int, ...]],
        costs: Sequence[OpCost],
        limits: Limits,
        step_bytes: int,
        took: float | None,
    ) -> RooflineRow:
        chosen = [costs[index] for group in groups for index in group]
        work = sum(map(self._work_model.of_op, chosen), Work())
        # What has a memory of its own finds it where a whole step leaves it; rows are handed on in the nearest cache.
        rereads = not any(_has_memory(cost.op) for cost in chosen)
        return _row(name, len(groups), work, limits, work.bytes / len(groups) if rereads else step_bytes, took)

    def _product_seconds(self, shape: StepShape, limits: Limits) -> tuple[float, float]:
        """Return what the products of a step take at least: to compute, to read and write."""
        costs = self._costs(shape, limits)
        work = sum((self._work_model.of_op(c) for c in costs if isinstance(c.op, (Linear, Moe, Route))), Work())
        return limits.compute_seconds(work), limits.memory_seconds(work.bytes, sum(cost.bytes for cost in costs))

    def _attention_seconds(self, shape: StepShape, limits: Limits) -> float:
        costs = self._costs(shape, limits)
        work = sum((self._work_model.of_op(c) for c in costs if isinstance(c.op, PagedAttention)), Work())
        memory = limits.memory_seconds(work.bytes, sum(cost.bytes for cost in costs))
        return max(limits.compute_seconds(work), memory)


def _row(name: str, count: int, work: Work, limits: Limits, working_set: float, took: float | None) -> RooflineRow:
    flops = work.int8_ops + work.fp32_flops
    compute, memory = limits.compute_seconds(work), limits.memory_seconds(work.bytes, working_set)
    limit = max(compute, memory)
    return RooflineRow(
        op=name,
        count=count,
        flops=flops,
        bytes=work.bytes,
        intensity=flops / work.bytes,
        compute_s=compute,
        memory_s=memory,
        limit_s=limit,
        bound="compute" if compute >= memory else "memory",
        took_s=took,
        fraction_of_limit=limit / took if took else None,
    )


def _intensity(costs: Sequence[OpCost]) -> float:
    return sum(cost.flops for cost in costs) / sum(cost.bytes for cost in costs)


def _has_memory(op: Op) -> bool:
    """Whether an op reads a matrix, or keys and values or states of requests."""
    return any(weight.is_matrix for weight in op.weights) or hasattr(op, "cache")


def _labels(ops: Sequence[Op], loaded: LoadedProgram) -> list[str]:
    """Name each op by what it does: its kind, and shape and format of its matrix."""
    names: dict[int, str] = {}
    for entry in op_classes(loaded.program, loaded.weights):
        parts = [entry.kind, entry.shape, entry.format] if entry.format else [entry.kind]
        names |= {id(op): " ".join(parts) for op in entry.ops}
    return [GatherRows.kind if isinstance(op, GatherRows) else names[id(op)] for op in ops]


def _groups(stage_ops: Sequence[tuple[int, ...]], num_ops: int) -> list[tuple[int, ...]]:
    """Return the ops in groups: those that share a stage, and through them those that share one with these."""
    group_of = list(range(num_ops))
    for ops in stage_ops:
        merged = {group_of[index] for index in ops}
        group_of = [min(merged) if group in merged else group for group in group_of]
    members: dict[int, list[int]] = {}
    for index, group in enumerate(group_of):
        members.setdefault(group, []).append(index)
    return [tuple(indexes) for indexes in members.values()]
