"""Matrix products in numpy, one rounding at a time: what the kernels must equal bit for bit.

Weights come as the bytes of a GGUF file. Their values are decoded by gguf-py, an implementation that is not ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GROUP = 32


@dataclass(frozen=True)
class Format:
    """A weight format: its number in the kernels, and its blocks in a file."""

    name: str
    number: int
    block_values: int
    block_bytes: int

    @property
    def type(self) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType[self.name]


FLOAT_FORMATS = [Format("F32", 0, 1, 4), Format("F16", 1, 1, 2), Format("BF16", 2, 1, 2)]
SMALL_FORMATS = [
    Format("Q4_0", 3, 32, 18),
    Format("Q4_1", 4, 32, 20),
    Format("Q5_0", 5, 32, 22),
    Format("Q5_1", 6, 32, 24),
    Format("Q8_0", 7, 32, 34),
]
SMALL_FORMATS += [Format("IQ4_NL", 13, 32, 18), Format("MXFP4", 15, 32, 17), Format("Q4_Z", 16, 32, 20)]
K_FORMATS = [
    Format("Q4_K", 8, 256, 144),
    Format("Q5_K", 9, 256, 176),
    Format("Q6_K", 10, 256, 210),
    Format("Q2_K", 11, 256, 84),
    Format("Q3_K", 12, 256, 110),
    Format("IQ4_XS", 14, 256, 136),
]
QUANTIZED_FORMATS = SMALL_FORMATS + K_FORMATS
FORMATS = FLOAT_FORMATS + QUANTIZED_FORMATS

HALF_FIELDS = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
    "Q4_Z": [0, 2],
}
"""Where a block has its float16 numbers: d, then m."""


@cache
def make_file_rows(fmt: Format, rows: int, columns: int) -> Bytes:
    """Return random rows as a file has them, [rows, bytes of a row]; any quant and sub-scale, finite floats."""
    rng = np.random.default_rng([fmt.number, rows, columns])
    if fmt in FLOAT_FORMATS:
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        values.flat[:: max(1, values.size // 7)] = 1e-6  # subnormal as float16
        if fmt.name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype("<f2" if fmt.name == "F16" else "<f4").view(np.uint8)
    blocks = rng.integers(0, 256, (rows, columns // fmt.block_values, fmt.block_bytes), dtype=np.uint8)
    for at in HALF_FIELDS[fmt.name]:
        numbers = rng.uniform(1e-5, 0.1, blocks.shape[:2]) * rng.choice([-1, 1], blocks.shape[:2])
        blocks[:, :, at : at + 2] = numbers.astype("<f2")[..., None].view(np.uint8)
    if fmt.name == "MXFP4":
        blocks[:, :, 0] = rng.integers(110, 130, blocks.shape[:2])
    if fmt.name == "Q4_Z":
        blocks[:, :, 2:4] = -rng.integers(0, 17, blocks.shape[:2]).astype("<f2")[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def dequantize(fmt: Format, rows: Bytes) -> Floats:
    """Return the float32 values of file rows."""
    if fmt.name == "Q4_Z":
        return _with_zero_points(rows)
    return np.asarray(gguf.quants.dequantize(rows, fmt.type), dtype=np.float32)


def _with_zero_points(rows: Bytes) -> Floats:
    """Return d * (q - zero_point), which float32 holds exactly; a zero has the sign of d * q - d * zero_point."""
    blocks = rows.reshape(len(rows), -1, 20)
    q = np.concatenate([blocks[:, :, 4:] & 15, blocks[:, :, 4:] >> 4], axis=2).astype(np.float32)
    d, negated = _halves(blocks, 0)[:, :, None], _halves(blocks, 2)[:, :, None]
    values = d * (q + negated)
    return np.asarray(np.where(values == 0, d * q + d * negated, values).reshape(len(rows), -1), np.float32)


def fused_multiply_add(a: Floats, b: Floats, c: Floats) -> Floats:
    """Return a * b + c rounded once.

    The product is exact in float64. Their sum is rounded to odd there, so that rounding it again to float32 is right.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    is_even = (total.view(np.int64) & 1) == 0
    toward_error = np.nextafter(total, np.copysign(np.inf, error))
    return np.where(np.isfinite(total) & (error != 0) & is_even, toward_error, total).astype(np.float32)


def multiply_add(a: Floats, b: Floats, c: Floats, fused: bool) -> Floats:
    """Return a * b + c as a level computes it: fused, or as a product and a sum."""
    return fused_multiply_add(a, b, c) if fused else a * b + c


@dataclass(frozen=True)
class Activations:
    """Rows [M, K] rounded to int8 in groups of 32."""

    q: Ints  # [M, K]
    scale: Floats  # [M, G]
    scale_sum: Floats  # [M, G]


def quantize(x: Floats) -> Activations:
    """Round activations; K must be a multiple of 32."""
    groups = x.reshape(len(x), -1, GROUP)
    scale = np.abs(groups).max(axis=2) / np.float32(127)
    safe = np.where(scale == 0, np.float32(1), scale)
    q = np.rint(groups * (np.float32(1) / safe)[:, :, None]).astype(np.int64)
    return Activations(q.reshape(x.shape), scale, scale * q.sum(axis=2).astype(np.float32))


@dataclass(frozen=True)
class Weights:
    """Quantised rows [N, K] taken apart: w = scale * q + minimum, with a scale per `span` values."""

    q: Ints  # [N, K]
    span: int
    scale: Floats  # [N, K / span]
    minimum: Floats | None  # [N, K / span]


def _halves(blocks: Bytes, at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2").astype(np.float32)[:, :, 0]


@cache
def take_apart(fmt: Format, rows: int, columns: int) -> Weights:
    """Return quants, scales and minimums of make_file_rows' rows; quants are recovered from gguf-py's values."""
    file_rows = make_file_rows(fmt, rows, columns)
    blocks = file_rows.reshape(rows, -1, fmt.block_bytes)
    if fmt.name == "MXFP4":
        return _take_float4_apart(blocks)
    scale = _halves(blocks, HALF_FIELDS[fmt.name][0])
    minimum = _halves(blocks, HALF_FIELDS[fmt.name][1]) if len(HALF_FIELDS[fmt.name]) == 2 else None
    span = GROUP
    if fmt.name in ("Q4_K", "Q5_K"):
        assert minimum is not None
        sub_scale, sub_minimum = gguf.quants.Q4_K.get_scale_min(blocks[:, :, 4:16].reshape(-1, 12))
        scale = (scale[:, :, None] * sub_scale.reshape(rows, -1, 8).astype(np.float32)).reshape(rows, -1)
        minimum = -(minimum[:, :, None] * sub_minimum.reshape(rows, -1, 8).astype(np.float32)).reshape(rows, -1)
    if fmt.name == "Q6_K":
        span = 16
        scale = (scale[:, :, None] * blocks[:, :, 192:208].view(np.int8).astype(np.float32)).reshape(rows, -1)
    if fmt.name == "Q2_K":
        assert minimum is not None
        span, packed = 16, blocks[:, :, :16]
        scale = (scale[:, :, None] * (packed & 15).astype(np.float32)).reshape(rows, -1)
        minimum = -(minimum[:, :, None] * (packed >> 4).astype(np.float32)).reshape(rows, -1)
    if fmt.name == "Q3_K":
        span = 16
        low = np.concatenate([blocks[:, :, 96:104] & 15, blocks[:, :, 96:104] >> 4], axis=2)
        high = np.concatenate([(blocks[:, :, 104:108] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=2)
        sub_scale = (low + 16 * high).astype(np.int64) - 32
        scale = (scale[:, :, None] * sub_scale.astype(np.float32)).reshape(rows, -1)
    if fmt.name == "IQ4_XS":
        low = np.stack([blocks[:, :, 4:8] & 15, blocks[:, :, 4:8] >> 4], axis=3).reshape(rows, -1, 8)
        high = np.stack([(blocks[:, :, 2 + i // 4] >> (2 * (i % 4))) & 3 for i in range(8)], axis=2)
        sub_scale = (low + 16 * high).astype(np.int64) - 32
        scale = (scale[:, :, None] * sub_scale.astype(np.float32)).reshape(rows, -1)
    if fmt.name == "Q4_Z":
        assert minimum is not None
        minimum = minimum * scale
    values = dequantize(fmt, file_rows).astype(np.float64).reshape(rows, -1, span)
    offset = 0.0 if minimum is None else minimum.astype(np.float64)[:, :, None]
    safe = np.where(scale == 0, np.inf, scale.astype(np.float64))[:, :, None]
    return Weights(np.rint((values - offset) / safe).astype(np.int64).reshape(rows, columns), span, scale, minimum)


def _take_float4_apart(blocks: Bytes) -> Weights:
    """Take MXFP4 apart: twice the values of a four-bit float, under half their scale."""
    scale = np.ldexp(np.float32(0.5), blocks[:, :, 0].astype(np.int32) - 127).astype(np.float32)
    values = np.asarray(gguf.quants.dequantize(blocks.reshape(len(blocks), -1), gguf.GGMLQuantizationType.MXFP4))
    q = np.rint(values.reshape(len(blocks), -1, GROUP) / scale[:, :, None]).astype(np.int64)
    return Weights(q.reshape(len(blocks), -1), GROUP, scale, None)


@cache
def int8_sums(fmt: Format, num_rows: int, rows: int, columns: int, fused: bool) -> Floats:
    """Return make_activations(num_rows, columns) @ make_file_rows(fmt, rows, columns).T, the int8 way."""
    x, w = quantize(make_activations(num_rows, columns)), take_apart(fmt, rows, columns)
    sums = np.zeros((num_rows, rows), dtype=np.float32)
    for start in range(0, columns, GROUP):
        x_scale = x.scale[:, start // GROUP, None]
        for at in range(start, start + GROUP, w.span):
            dot = (x.q[:, at : at + w.span] @ w.q[:, at : at + w.span].T).astype(np.float32)
            sums = multiply_add(w.scale[None, :, at // w.span] * x_scale, dot, sums, fused)
            if w.minimum is not None:
                x_sum = x_scale * x.q[:, at : at + w.span].sum(axis=1, keepdims=True).astype(np.float32)
                sums = multiply_add(w.minimum[None, :, at // w.span], x_sum, sums, fused)
    return sums


@cache
def float_sums(fmt: Format, num_rows: int, rows: int, columns: int, fused: bool) -> Floats:
    """Return make_activations(num_rows, columns) @ make_file_rows(fmt, rows, columns).T, the float way."""
    x, w = make_activations(num_rows, columns), dequantize(fmt, make_file_rows(fmt, rows, columns))
    sums = np.zeros((num_rows, rows), dtype=np.float32)
    for k in range(columns):
        sums = multiply_add(x[:, k, None], w[None, :, k], sums, fused)
    return sums


@cache
def make_activations(num_rows: int, columns: int) -> Floats:
    """Return random rows [num_rows, columns] of very different sizes; one group of zeros, if there are several."""
    rng = np.random.default_rng([num_rows, columns])
    sizes = np.float32(10) ** rng.integers(-3, 3, (num_rows, 1))
    x = rng.standard_normal((num_rows, columns), dtype=np.float32) * sizes
    if num_rows > 1 and columns > GROUP:
        x[1, :GROUP] = 0
    return x.astype(np.float32)


def make_bias(rows: int) -> Floats:
    """Return a random bias [rows]."""
    return np.random.default_rng(rows).standard_normal(rows, dtype=np.float32)


def assert_same_bits(actual: Floats, expected: Floats) -> None:
    """Compare as bits: -0.0 is not 0.0, and closeness is not equality."""
    bits = [np.ascontiguousarray(array).view(np.uint32) for array in (actual, expected)]
    np.testing.assert_array_equal(*bits)


MOST_ROWS = 67
ROW_COUNTS = [*range(1, 15), 17, 33, MOST_ROWS]
"""Rows of a product: every tile and its remainders, and more than one tile."""


def shape_id(value: object) -> str:
    """Name a format, or a size, in a test's id."""
    return value.name if isinstance(value, Format) else str(value)


def make_matrix(kernels: ModuleType, fmt: Format, N: int, K: int) -> Any:
    """Pack the rows that the oracle's sums are made of."""
    return kernels.PackedMatrix.pack(fmt.number, [make_file_rows(fmt, N, K)], N, K)
