"""`octavo bench kernels`: each kind of op of a model by itself, beside the limits measured in the same second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from octavo.bench.report import Report, format_columns, make_recipe, peaks_as_json
from octavo.bench.step_work import Work, WorkModel
from octavo.bench.steps import LoadedProgram, StepFigures, decode_step, load_program, measure_steps
from octavo.bench.synthetic import synthetic_program
from octavo.bench.targets import Target, target_of
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.formats.gguf_types import GgufType
from octavo.frontend.machine import peak_rss_bytes
from octavo.native import default_num_threads, kernels
from octavo.native.peaks import READ_SIZES, PeakMeter, ThreadPeaks
from octavo.program.cost import StepShape, program_costs
from octavo.runner.isolation import OpClass, isolate, op_classes
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.program.ops import Program

DEFAULT_BATCH_SIZES = (1, 8, 64)
DEFAULT_FORMATS = ("Q4_1", "Q4_K", "Q6_K", "Q8_0", "BF16")
_OPTIONS_WITHOUT_MODEL = ("num_threads", "activation_quantization")
_HEADER = (
    "op",
    "shape",
    "format",
    "rows",
    "context",
    "us",
    "GOP/s",
    "GB/s",
    "of peak",
    "of bandwidth",
    "of limit",
    "floor",
    "aim",
    "reached",
)


@dataclass(frozen=True, slots=True)
class KernelSteps:
    """The steps that ops are measured in: one row for each of a number of requests, and one prompt.

    Raises: `ConfigError` for values that mean nothing.
    """

    batch_sizes: tuple[int, ...] = DEFAULT_BATCH_SIZES
    context_len: int = 256
    """Tokens of each decoding request, the new one included."""
    input_len: int = 512
    """Tokens of the prompt."""
    min_seconds: float = 0.1
    """Time spent on each kind of op in each step, at least."""

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1 or max(self.batch_sizes) > 4096:
            raise ConfigError(f"batch_sizes must be numbers in [1, 4096], got {list(self.batch_sizes)}.")
        if not 0.0 <= self.min_seconds <= 60.0:
            raise ConfigError(f"min_seconds must be in [0, 60], got {self.min_seconds}.")
        for name in ("context_len", "input_len"):
            if not 1 <= getattr(self, name) <= 1 << 17:
                raise ConfigError(f"{name} must be in [1, {1 << 17}], got {getattr(self, name)}.")

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(self.context_len, self.input_len)

    def shapes(self) -> list[StepShape]:
        """Return the steps, each with a logit row for every row, so that ops of the head are measured alike."""
        return [
            *(decode_step(size, self.context_len) for size in self.batch_sizes),
            StepShape([self.input_len], [self.input_len], self.input_len),
        ]


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """One kind of op in one step: the mean over all ops of the kind."""

    op: str
    shape: str
    format: str
    count: int
    """Ops of this kind in the model."""
    num_rows: int
    context_len: int
    seconds: float
    ops_per_s: float
    bytes_per_s: float
    fraction_of_peak: float
    """Of the int8 peak for operations on 8-bit integers, of the fp32 peak for others."""
    fraction_of_bandwidth: float
    """Of what reading a working set of this size over and over gives."""
    fraction_of_limit: float
    """The time that the nearer of the two limits allows, over the time it took."""
    target: Target | None
    """What one of the fractions is to be."""

    def target_cells(self) -> tuple[str, str, str]:
        """Return floor, aim and which of them was reached, for a table."""
        if self.target is None:
            return ("-", "-", "-")
        fraction = self.fraction_of_peak if self.target.limit == "peak" else self.fraction_of_bandwidth
        floor = f"{self.target.floor:.0%} of {self.target.limit}"
        return (floor, f"{self.target.aim:.0%}", self.target.verdict(fraction))


def run_kernels(
    model: str | None,
    options: dict[str, Any],
    steps: KernelSteps,
    *,
    formats: Sequence[str] = DEFAULT_FORMATS,
    show_progress: bool = False,
) -> Report:
    """Measure every kind of op and report.

    Args:
        model: whose ops; None for a small model of random weights, once in each of `formats`.
        options: of the engine.

    Raises: `ConfigError`, `ModelLoadError`.
    """
    unknown = [name for name in formats if name not in GgufType.__members__]
    if unknown:
        raise ConfigError(f"formats must be of {', '.join(GgufType.__members__)}, got {unknown[0]!r}.")
    config = _checked(model, options)
    num_threads = config.num_threads or default_num_threads()
    peaks = PeakMeter(num_threads).measure()
    if model is not None:
        sources = iter([load_program(config, longest=steps.longest)])
    else:
        quantize = config.activation_quantization
        sources = (synthetic_program(GgufType[name], steps.longest, num_threads, quantize) for name in formats)
    ops: list[KernelFigures] = []
    whole: list[StepFigures] = []
    for loaded in sources:
        known = {(entry.op, entry.shape, entry.format) for entry in ops}
        ops += _measure_ops(loaded, steps, known, show_progress=show_progress)
        if model is not None:
            whole += measure_steps(loaded, steps.shapes(), min_seconds=steps.min_seconds)
    workload = {**asdict(steps), "formats": list(formats) if model is None else None}
    recipe = make_recipe(
        None if model is None else config, num_threads=num_threads, isa=str(kernels().isa), workload=workload
    )
    figures = {
        "kernels": [asdict(entry) for entry in ops],
        "steps": [asdict(entry) for entry in whole],
        "peaks": peaks_as_json(peaks),
        "peak_rss_bytes": peak_rss_bytes(),
    }
    return Report("kernels", recipe, figures, _table(ops, whole, peaks))


def _checked(model: str | None, options: dict[str, Any]) -> EngineConfig:
    """Check the options, also where there is no model to resolve them with; then those without a use are refused."""
    if model is None:
        for name in options:
            if name not in _OPTIONS_WITHOUT_MODEL:
                used = " and ".join(_OPTIONS_WITHOUT_MODEL)
                raise ConfigError(f"{name} needs a model (-m): without one, only {used} are used.")
    return EngineConfig(model or "random weights", **options)


def _measure_ops(
    loaded: LoadedProgram, steps: KernelSteps, known: set[tuple[str, str, str]], *, show_progress: bool
) -> Iterator[KernelFigures]:
    """Measure every class of ops that is not `known` already."""
    from tqdm import tqdm

    meter, shapes = PeakMeter(loaded.num_threads), steps.shapes()
    pools = loaded.cache_pools(shapes)
    classes = op_classes(loaded.program, loaded.weights)
    unknown = [entry for entry in classes if (entry.kind, entry.shape, entry.format) not in known]
    for op_class in tqdm(unknown, desc="Kinds of ops", disable=not show_progress, dynamic_ncols=True):
        isolated, weights = isolate(loaded.program, loaded.weights, op_class.ops)
        with loaded.timer(isolated, weights, shapes=shapes, pools=pools, has_head=False) as timer:
            for shape in shapes:
                work = _work(isolated, op_class, shape, loaded.work_model)
                seconds = min(timer.seconds(shape, at_least=steps.min_seconds))
                yield _figures(op_class, shape, work, seconds, meter)


def _work(isolated: Program, op_class: OpClass, shape: StepShape, model: WorkModel) -> Work:
    """Return the work of all ops of the class."""
    costs = program_costs(isolated, shape, _WithSources(model.weight_bytes))
    chosen = costs[: len(isolated.body)][-len(op_class.ops) :]
    return sum(map(model.of_op, chosen), Work())


class _WithSources(dict[str, int]):
    """Weight sizes; the tables that an isolated program reads its rows from count nothing."""

    def __missing__(self, name: str) -> int:
        return 0


def _figures(op_class: OpClass, shape: StepShape, work: Work, seconds: float, meter: PeakMeter) -> KernelFigures:
    count = len(op_class.ops)
    rereads = not any(weight.is_matrix for weight in op_class.ops[0].weights) and not hasattr(op_class.ops[0], "cache")
    working_set = work.bytes // count if rereads else work.bytes  # ops without a memory of their own share their rows
    bandwidth = meter.read_bytes_per_s(min(max(working_set, READ_SIZES[0]), READ_SIZES[-1]))
    num_ops = work.int8_ops + work.fp32_flops
    at_peak = work.int8_ops / meter.int8_ops_per_s() if work.int8_ops else 0.0
    at_peak += work.fp32_flops / meter.fp32_flops_per_s() if work.fp32_flops else 0.0
    limit = max(at_peak, work.bytes / bandwidth)
    num_rows = sum(shape.query_lens)
    return KernelFigures(
        op=op_class.kind,
        shape=op_class.shape,
        format=op_class.format,
        count=count,
        num_rows=num_rows,
        context_len=max(shape.seq_lens),
        seconds=seconds / count,
        ops_per_s=num_ops / seconds,
        bytes_per_s=work.bytes / seconds,
        fraction_of_peak=at_peak / seconds,
        fraction_of_bandwidth=work.bytes / seconds / bandwidth,
        fraction_of_limit=limit / seconds,
        target=target_of(op_class.kind, op_class.format, num_rows, is_prompt=num_rows > len(shape.query_lens)),
    )


def _table(ops: Sequence[KernelFigures], whole: Sequence[StepFigures], peaks: ThreadPeaks) -> str:
    reads = ", ".join(f"{rate / 1e9:.1f} from {size >> 20} MB" for size, rate in peaks.read_bytes_per_s.items())
    limits = (
        f"{counted(peaks.num_threads, 'thread')}, {kernels().isa}: {peaks.int8_ops_per_s / 1e9:,.0f} GOP/s int8, "
        f"{peaks.fp32_flops_per_s / 1e9:,.0f} GFLOP/s fp32, GB/s read: {reads}"
    )
    rows = [
        [
            entry.op,
            entry.shape,
            entry.format or "-",
            entry.num_rows,
            entry.context_len,
            entry.seconds * 1e6,
            entry.ops_per_s / 1e9,
            entry.bytes_per_s / 1e9,
            f"{entry.fraction_of_peak:.0%}",
            f"{entry.fraction_of_bandwidth:.0%}",
            f"{entry.fraction_of_limit:.0%}",
            *entry.target_cells(),
        ]
        for entry in ops
    ]
    tables = [limits, format_columns(_HEADER, rows)]
    if whole:
        lines = [
            [
                counted(entry.num_requests, "request"),
                entry.num_rows,
                entry.context_len,
                entry.seconds * 1e3,
                entry.tokens_per_s,
            ]
            for entry in whole
        ]
        tables.append(format_columns(("whole step", "rows", "context", "ms", "tokens/s"), lines))
    return "\n\n".join(tables)
