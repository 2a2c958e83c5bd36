"""`octavo roofline`: how far each op of a model's step is from the machine's limits, as tables or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import click

from octavo.cli.engine_flags import EngineCommand, flags_of, given_engine_options
from octavo.cli.model_option import takes_model
from octavo.cli.option_types import WholeNumbers
from octavo.config import Dtype, EngineConfig
from octavo.explain.machines import DTYPE_BYTES
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.explain.roofline import RooflineReport, RooflineStep
    from octavo.explain.roofline_matrix import MatrixReport

_ROW_HEADER = ("op", "count", "MFLOP", "MB", "FLOP/byte", "limit us", "by", "took us", "of limit")
_STEP_HEADER = ("B", "MFLOP", "MB", "FLOP/byte", "attention's", "limit ms", "ops ms", "step ms", "of limit", "tokens/s")
_WIDTH = 110
"""Columns of a paragraph."""
_DTYPES = tuple(dict.fromkeys((*DTYPE_BYTES, *get_args(Dtype))))
_MATRIX_HEADER = ("B", "MFLOP", "MB", "FLOP/byte", "limit us", "by")


@click.command("roofline", cls=EngineCommand, short_help="Compare each op of a step with the machine's limits.")
@takes_model(required=False)
@click.option(
    "--matrix",
    help="Instead of a model, one matrix, as outputs x inputs: 4096x4096.",
)
@click.option(
    "--dtype", type=click.Choice(_DTYPES), help="Of the matrix, bfloat16 by default; of a model, as for generate."
)
@click.option(
    "--batch-sizes", type=WholeNumbers(), default="1,8,32,256,512", show_default=True, help="Separated by commas."
)
@click.option("--context-len", type=int, default=128, show_default=True, help="Tokens of each request.")
@click.option("--min-seconds", type=float, default=0.3, show_default=True, help="Time spent on each step, at least.")
@click.option("--machine", help="One of the table of published peaks, for example h100.  [default: this, measured]")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
@flags_of(EngineConfig, without={"model", "dtype"})
def command(model: str | None, matrix: str | None, as_json: bool, **flags: Any) -> None:
    """Compare each op of a step with what the machine's arithmetic and memory allow.

    A step makes one token for each of B requests. Its ops are timed where the model runs on this machine.
    """
    if (model is None) == (matrix is None):
        raise click.UsageError("give a model, or --matrix")
    sizes = flags["batch_sizes"]
    if matrix is not None:
        _show_matrix(_parsed_matrix(matrix), flags["dtype"] or "bfloat16", sizes, flags["machine"], as_json)
        return
    from octavo.explain.roofline import RooflineSteps, run_roofline

    assert model is not None, "one of them is given"
    steps = RooflineSteps(sizes, flags["context_len"], flags["min_seconds"])
    report = run_roofline(model, given_engine_options(flags), steps, flags["machine"])
    click.echo(json.dumps(asdict(report)) if as_json else "\n".join(_lines(report)))


def _show_matrix(matrix: tuple[int, int], dtype: str, sizes: Sequence[int], machine: str | None, as_json: bool) -> None:
    from octavo.explain.machines import published_machine
    from octavo.explain.roofline import this_machine
    from octavo.explain.roofline_matrix import matrix_roofline

    device = this_machine() if machine is None else published_machine(machine)
    report = matrix_roofline(matrix, dtype, sizes, device)
    click.echo(json.dumps(asdict(report)) if as_json else "\n".join(_matrix_lines(report)))


def _lines(report: RooflineReport) -> Iterator[str]:
    from octavo.bench.report import format_columns

    yield f"{report.model} on {report.machine}"
    for step in report.steps:
        yield f"\nB = {step.batch_size}, {counted(step.context_len, 'token')} of context each"
        rows = [
            [
                row.op,
                row.count,
                row.flops / 1e6,
                row.bytes / 1e6,
                row.intensity,
                row.limit_s * 1e6,
                row.bound,
                None if row.took_s is None else row.took_s * 1e6,
                _percent(row.fraction_of_limit),
            ]
            for row in step.rows
        ]
        yield format_columns(_ROW_HEADER, rows)
    yield "\nWhole steps"
    yield format_columns(_STEP_HEADER, map(_step_cells, report.steps))
    yield ""
    yield from (click.wrap_text(text, _WIDTH, subsequent_indent="  ") for text in report.summary)


def _step_cells(step: RooflineStep) -> list[object]:
    return [
        step.batch_size,
        step.flops / 1e6,
        step.bytes / 1e6,
        step.intensity,
        step.attention_intensity,
        step.limit_s * 1e3,
        None if step.sum_s is None else step.sum_s * 1e3,
        None if step.step_s is None else step.step_s * 1e3,
        _percent(step.fraction_of_limit),
        step.batch_size / (step.step_s or step.limit_s),
    ]


def _matrix_lines(report: MatrixReport) -> Iterator[str]:
    from octavo.bench.report import format_columns

    yield f"{report.matrix[0]} x {report.matrix[1]} in {report.dtype} on {report.machine} ({report.source})"
    rows = [
        [row.batch_size, row.flops / 1e6, row.bytes / 1e6, row.intensity, row.limit_s * 1e6, row.bound]
        for row in report.rows
    ]
    yield format_columns(_MATRIX_HEADER, rows)
    yield click.wrap_text(report.summary, _WIDTH)


def _percent(fraction: float | None) -> str | None:
    return None if fraction is None else f"{fraction:.0%}"


def _parsed_matrix(text: str) -> tuple[int, int]:
    try:
        num_rows, width = map(int, text.lower().split("x"))
    except ValueError as error:
        raise click.BadParameter(f"expected outputs x inputs, such as 4096x4096, got {text!r}") from error
    return num_rows, width
