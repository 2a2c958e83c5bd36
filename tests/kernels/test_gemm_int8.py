"""Products with int8 activations equal the oracle bit for bit, whatever tile, panel or call computes them."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matrix_oracle import (
    HALF_FIELDS,
    K_FORMATS,
    MOST_ROWS,
    QUANTIZED_FORMATS,
    ROW_COUNTS,
    SMALL_FORMATS,
    Floats,
    Format,
    assert_same_bits,
    dequantize,
    int8_sums,
    make_activations,
    make_bias,
    make_matrix,
    shape_id,
)

SHAPES = [(fmt, N, K) for fmt in SMALL_FORMATS for N, K in [(1, 32), (15, 64), (16, 256), (17, 576), (90, 576)]]
SHAPES += [(fmt, N, K) for fmt in K_FORMATS for N, K in [(1, 256), (17, 512), (90, 768)]]
SHAPES += [(fmt, 170, 1280) for fmt in QUANTIZED_FORMATS]  # more panels and rows than are kept in cache at once


def multiply(kernels: ModuleType, matrix: Any, x: Floats, **options: Any) -> Floats:
    y = np.full((len(x), matrix.N), np.nan, dtype=np.float32)
    kernels.gemm_int8(matrix, kernels.quantize_rows(x), y, **options)
    return y


@pytest.mark.parametrize(("fmt", "N", "K"), SHAPES, ids=shape_id)
def test_every_number_of_rows_equals_the_oracle(kernels: ModuleType, fmt: Format, N: int, K: int) -> None:
    matrix, x = make_matrix(kernels, fmt, N, K), make_activations(MOST_ROWS, K)
    expected = int8_sums(fmt, MOST_ROWS, N, K, kernels.fused_multiply_add)
    for rows in ROW_COUNTS:
        assert_same_bits(multiply(kernels, matrix, x[:rows]), expected[:rows])


@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF], ids=hex)
@pytest.mark.parametrize("fmt", QUANTIZED_FORMATS, ids=shape_id)
def test_the_largest_sums_do_not_overflow(kernels: ModuleType, fmt: Format, fill: int) -> None:
    N, K = 16, 256
    blocks = np.full((N, K // fmt.block_values, fmt.block_bytes), fill, dtype=np.uint8)
    if fmt.name == "Q6_K":
        blocks[:, :, 192:208] = 1  # scales
    if fmt.name == "MXFP4":
        blocks[:, :, 0] = 127  # the exponent of 1
    for at in HALF_FIELDS[fmt.name]:
        blocks[:, :, at : at + 2] = np.array([0.5], dtype="<f2").view(np.uint8)
    rows = blocks.reshape(N, -1)
    matrix = kernels.PackedMatrix.pack(fmt.number, [rows], N, K)
    signs = np.where(np.arange(K) // 2 % 2, 1, -1) * np.array([[1], [-1]])
    x = 127 * np.concatenate([np.ones((1, K)), -np.ones((1, K)), signs, -np.ones((30, K))]).astype(np.float32)
    expected = x.astype(np.float64) @ dequantize(fmt, rows).T.astype(np.float64)
    for count in (1, 4, len(x)):
        np.testing.assert_allclose(multiply(kernels, matrix, x[:count]), expected[:count], rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("fmt", QUANTIZED_FORMATS, ids=shape_id)
def test_bias_then_the_old_value_are_added(kernels: ModuleType, fmt: Format, rows: int) -> None:
    N, K = 90, 768
    matrix, x, bias = make_matrix(kernels, fmt, N, K), make_activations(MOST_ROWS, K), make_bias(N)
    sums = int8_sums(fmt, MOST_ROWS, N, K, kernels.fused_multiply_add)[:rows]
    old = np.random.default_rng(1).standard_normal((rows, N), dtype=np.float32)
    blocks = kernels.quantize_rows(x[:rows])
    for given in (None, bias):
        for add in (False, True):
            y = old.copy()
            kernels.gemm_int8(matrix, blocks, y, bias=given, add=add)
            expected = sums if given is None else sums + given
            assert_same_bits(y, expected + old if add else expected)


@pytest.mark.parametrize("fmt", QUANTIZED_FORMATS, ids=shape_id)
def test_any_split_of_rows_and_panels_gives_the_same_bytes(kernels: ModuleType, fmt: Format) -> None:
    matrix, x = make_matrix(kernels, fmt, 90, 768), make_activations(MOST_ROWS, 768)
    whole, blocks = multiply(kernels, matrix, x), kernels.quantize_rows(x)
    rng = np.random.default_rng(2)
    for _ in range(8):
        row_cuts = [0, *sorted(rng.choice(np.arange(1, MOST_ROWS), rng.integers(0, 9), replace=False)), MOST_ROWS]
        panel_cuts = [0, *sorted(rng.choice(np.arange(1, matrix.num_panels), rng.integers(0, 4), replace=False))]
        panel_cuts.append(matrix.num_panels)
        y = np.full_like(whole, np.nan)
        for first, last in pairwise(row_cuts):
            for begin, end in pairwise(panel_cuts):
                kernels.gemm_int8(matrix, blocks[first:last], y[first:last], panel_begin=begin, panel_end=end)
        assert_same_bits(y, whole)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("fmt", QUANTIZED_FORMATS, ids=shape_id)
def test_a_row_that_is_not_finite_spoils_only_itself(kernels: ModuleType, fmt: Format, poison: float) -> None:
    matrix, x = make_matrix(kernels, fmt, 90, 512), make_activations(MOST_ROWS, 512).copy()
    clean = multiply(kernels, matrix, x)
    x[3, 40] = x[20, 511] = poison
    y = multiply(kernels, matrix, x)
    assert np.isnan(y[[3, 20]]).all()
    others = np.delete(np.arange(MOST_ROWS), [3, 20])
    assert_same_bits(y[others], clean[others])


def test_only_the_matrix_own_columns_are_written(kernels: ModuleType) -> None:
    fmt = QUANTIZED_FORMATS[0]
    matrix, x = make_matrix(kernels, fmt, 17, 64), make_activations(MOST_ROWS, 64)
    wide = np.full((MOST_ROWS, 40), 7, dtype=np.float32)
    kernels.gemm_int8(matrix, kernels.quantize_rows(x), wide[:, 5:22])
    assert_same_bits(wide[:, 5:22], multiply(kernels, matrix, x))
    assert (np.delete(wide, np.arange(5, 22), axis=1) == 7).all()


def test_no_rows_is_no_work(kernels: ModuleType) -> None:
    matrix = make_matrix(kernels, QUANTIZED_FORMATS[0], 17, 64)
    assert multiply(kernels, matrix, np.empty((0, 64), dtype=np.float32)).shape == (0, 17)


def test_a_bad_argument_is_refused_by_name(kernels: ModuleType) -> None:
    matrix = make_matrix(kernels, QUANTIZED_FORMATS[0], 17, 64)
    blocks, y = kernels.quantize_rows(make_activations(2, 64)), np.zeros((2, 17), dtype=np.float32)
    with pytest.raises(ValueError, match=r"y must have shape \(2, 17\), got \(1, 17\)"):
        kernels.gemm_int8(matrix, blocks, y[:1])
    with pytest.raises(ValueError, match=r"y must have shape \(2, 17\), got \(2, 16\)"):
        kernels.gemm_int8(matrix, blocks, y[:, :16])
    with pytest.raises(ValueError, match=r"x must be \[rows, 2, 64\]"):
        kernels.gemm_int8(matrix, blocks[:, :1], y)
    with pytest.raises(ValueError, match="bias must have 17 values"):
        kernels.gemm_int8(matrix, blocks, y, bias=np.zeros(16, np.float32))
    with pytest.raises(ValueError, match=r"panel_end must be in \[0, 2\], got 3"):
        kernels.gemm_int8(matrix, blocks, y, panel_begin=1, panel_end=3)
    with pytest.raises(ValueError, match="contiguous rows"):
        kernels.gemm_int8(matrix, blocks, np.zeros((2, 34), np.float32)[:, ::2])


def test_float_weights_are_refused(kernels: ModuleType) -> None:
    matrix = kernels.PackedMatrix.pack(0, [np.zeros((1, 128), np.uint8)], 1, 32)
    with pytest.raises(ValueError, match="quantised weights"):
        kernels.gemm_int8(matrix, kernels.quantize_rows(make_activations(1, 32)), np.zeros((1, 1), np.float32))
