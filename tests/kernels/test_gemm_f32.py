"""Products with float activations equal the oracle bit for bit, for float and for dequantised weights."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matrix_oracle import (
    FLOAT_FORMATS,
    FORMATS,
    K_FORMATS,
    MOST_ROWS,
    ROW_COUNTS,
    SMALL_FORMATS,
    Floats,
    Format,
    assert_same_bits,
    float_sums,
    make_activations,
    make_bias,
    make_matrix,
    shape_id,
)

SHAPES = [
    (fmt, N, K) for fmt in FLOAT_FORMATS for N, K in [(1, 32), (15, 64), (16, 256), (17, 576), (90, 600), (90, 1)]
]
SHAPES += [(fmt, N, K) for fmt in SMALL_FORMATS for N, K in [(1, 32), (17, 64), (90, 576)]]
SHAPES += [(fmt, N, K) for fmt in K_FORMATS for N, K in [(1, 256), (90, 512)]]


def multiply(kernels: ModuleType, matrix: Any, x: Floats, **options: Any) -> Floats:
    y = np.full((len(x), matrix.N), np.nan, dtype=np.float32)
    kernels.gemm_f32(matrix, x, y, **options)
    return y


@pytest.mark.parametrize(("fmt", "N", "K"), SHAPES, ids=shape_id)
def test_every_number_of_rows_equals_the_oracle(kernels: ModuleType, fmt: Format, N: int, K: int) -> None:
    matrix, x = make_matrix(kernels, fmt, N, K), make_activations(MOST_ROWS, K)
    expected = float_sums(fmt, MOST_ROWS, N, K, kernels.fused_multiply_add)
    for rows in ROW_COUNTS:
        assert_same_bits(multiply(kernels, matrix, x[:rows]), expected[:rows])


@pytest.mark.parametrize("fmt", FORMATS, ids=shape_id)
def test_bias_then_the_old_value_are_added(kernels: ModuleType, fmt: Format) -> None:
    N, K, rows = 90, 512, 5
    matrix, x, bias = make_matrix(kernels, fmt, N, K), make_activations(MOST_ROWS, K)[:rows], make_bias(N)
    sums = float_sums(fmt, MOST_ROWS, N, K, kernels.fused_multiply_add)[:rows]
    old = np.random.default_rng(1).standard_normal((rows, N), dtype=np.float32)
    y = old.copy()
    kernels.gemm_f32(matrix, x, y, bias=bias, add=True)
    assert_same_bits(y, (sums + bias) + old)


@pytest.mark.parametrize("fmt", FORMATS, ids=shape_id)
def test_any_split_of_rows_and_panels_gives_the_same_bytes(kernels: ModuleType, fmt: Format) -> None:
    matrix, x = make_matrix(kernels, fmt, 90, 512), make_activations(MOST_ROWS, 512)
    whole = multiply(kernels, matrix, x)
    rng = np.random.default_rng(3)
    for _ in range(4):
        row_cuts = [0, *sorted(rng.choice(np.arange(1, MOST_ROWS), rng.integers(0, 9), replace=False)), MOST_ROWS]
        panel_cuts = [0, *sorted(rng.choice(np.arange(1, matrix.num_panels), rng.integers(0, 4), replace=False))]
        panel_cuts.append(matrix.num_panels)
        y = np.full_like(whole, np.nan)
        for first, last in pairwise(row_cuts):
            for begin, end in pairwise(panel_cuts):
                kernels.gemm_f32(matrix, x[first:last], y[first:last], panel_begin=begin, panel_end=end)
        assert_same_bits(y, whole)


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=shape_id)
def test_a_row_that_is_not_finite_spoils_only_itself(kernels: ModuleType, fmt: Format, poison: float) -> None:
    matrix, x = make_matrix(kernels, fmt, 90, 512), make_activations(MOST_ROWS, 512).copy()
    clean = multiply(kernels, matrix, x)
    x[3, 40] = poison
    y = multiply(kernels, matrix, x)
    assert not np.isfinite(y[3]).any()
    others = np.delete(np.arange(MOST_ROWS), 3)
    assert_same_bits(y[others], clean[others])


def test_rows_may_lie_apart(kernels: ModuleType) -> None:
    matrix, x = make_matrix(kernels, FLOAT_FORMATS[0], 17, 64), make_activations(MOST_ROWS, 64)
    apart = np.zeros((MOST_ROWS, 100), dtype=np.float32)
    apart[:, 3:67] = x
    assert_same_bits(multiply(kernels, matrix, apart[:, 3:67]), multiply(kernels, matrix, x))


@pytest.mark.parametrize("fmt", FORMATS, ids=shape_id)
def test_no_rows_is_no_work(kernels: ModuleType, fmt: Format) -> None:
    matrix, x, y = make_matrix(kernels, fmt, 17, 512), make_activations(MOST_ROWS, 512), np.zeros((1, 17), np.float32)
    kernels.gemm_f32(matrix, x[:0], y[:0])
    assert not y.any()


def test_rows_of_another_length_are_refused(kernels: ModuleType) -> None:
    matrix = make_matrix(kernels, FLOAT_FORMATS[0], 17, 64)
    with pytest.raises(ValueError, match="the columns of x must be 64, got 63"):
        kernels.gemm_f32(matrix, np.zeros((2, 63), np.float32), np.zeros((2, 17), np.float32))
