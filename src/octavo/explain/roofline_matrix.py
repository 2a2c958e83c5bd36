"""The roofline of one matrix: how much arithmetic a batch makes of each byte, and when that fills the machine.

A product of B rows with a matrix [N, K] takes 2 B N K operations. It moves the matrix once, B rows in and B rows out.
So its intensity grows with B, nearly in proportion while the matrix is most of the traffic, and meets the machine's
ratio of arithmetic to bandwidth at one B: below, the product waits for memory; above, for arithmetic.
Source: Williams, Waterman, Patterson 2009, "Roofline", doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.explain.machines import DTYPE_BYTES, Machine

_MOST = 1 << 24


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One batch size."""

    batch_size: int
    flops: int
    bytes: int
    intensity: float
    """Operations for each byte moved."""
    compute_s: float
    memory_s: float
    limit_s: float
    """The longer of the two."""
    bound: str
    """Which it is: "compute" or "memory"."""


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """One matrix on one machine."""

    matrix: tuple[int, int]
    """[N, K]: outputs, inputs."""
    dtype: str
    machine: str
    flops_per_s: float
    bytes_per_s: float
    source: str
    ridge_intensity: float
    """Operations per byte from which on the machine is compute-bound."""
    compute_bound_batch_size: float | None
    """The B at which this matrix reaches that; None: at no B, the rows themselves are too much traffic."""
    rows: Sequence[MatrixRow]
    summary: str


def matrix_roofline(matrix: tuple[int, int], dtype: str, batch_sizes: Sequence[int], machine: Machine) -> MatrixReport:
    """Work out the limits of one product. Raises: `ConfigError` for sizes that mean nothing."""
    num_rows, width = matrix
    for name, size in (("matrix", num_rows), ("matrix", width), *(("batch_sizes", size) for size in batch_sizes)):
        if not 1 <= size <= _MOST:
            raise ConfigError(f"{name} must be of numbers in [1, {_MOST}], got {size}.")
    if not batch_sizes:
        raise ConfigError("batch_sizes must hold a number.")
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {dtype!r}.")
    size, peak = DTYPE_BYTES[dtype], machine.peak(dtype)
    rows = []
    for batch in batch_sizes:
        flops = 2 * batch * num_rows * width
        num_bytes = size * (num_rows * width + batch * (num_rows + width))
        compute, memory = flops / peak, num_bytes / machine.bytes_per_s
        bound = "compute" if compute >= memory else "memory"
        rows.append(MatrixRow(batch, flops, num_bytes, flops / num_bytes, compute, memory, max(compute, memory), bound))
    ridge = peak / machine.bytes_per_s
    knee = _compute_bound_batch_size(matrix, size, ridge)
    return MatrixReport(
        matrix=matrix,
        dtype=dtype,
        machine=machine.title,
        flops_per_s=peak,
        bytes_per_s=machine.bytes_per_s,
        source=machine.source,
        ridge_intensity=ridge,
        compute_bound_batch_size=knee,
        rows=rows,
        summary=_summary(matrix, dtype, machine, ridge, knee),
    )


def _compute_bound_batch_size(matrix: tuple[int, int], size: int, ridge: float) -> float | None:
    """Solve 2 B N K = ridge * size * (N K + B (N + K)) for B."""
    num_rows, width = matrix
    left = 2 * num_rows * width - ridge * size * (num_rows + width)
    return ridge * size * num_rows * width / left if left > 0 else None


def _summary(matrix: tuple[int, int], dtype: str, machine: Machine, ridge: float, knee: float | None) -> str:
    peak = f"{_tera(machine.peak(dtype))}FLOP/s in {dtype}, {_tera(machine.bytes_per_s)}B/s"
    start = f"{machine.title} ({peak}) does {ridge:,.0f} operations in the time of one byte. "
    name = f"A {matrix[0]} x {matrix[1]} matrix"
    if knee is None:
        return start + f"{name} never gives it that much: its inputs and outputs are too much traffic."
    return start + f"{name} becomes compute-bound at B = {knee:,.0f}; below that it waits for memory."


def _tera(value: float) -> str:
    return f"{value / 1e12:,.4g} T" if value >= 1e12 else f"{value / 1e9:,.4g} G"
