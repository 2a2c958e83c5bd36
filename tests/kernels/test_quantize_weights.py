"""Weights rounded at load are, byte for byte, those of the numpy definition; 8-bit ones also those of gguf-py."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
from matrix_oracle import FLOAT_FORMATS, SMALL_FORMATS, Bytes, Floats, Format, assert_same_bits, dequantize

from octavo.formats.gguf_types import GgufType
from octavo.weights.quantize_reference import quantize_rows, rounded

TARGETS = [fmt for fmt in SMALL_FORMATS if fmt.name in ("Q8_0", "Q4_1")]
Q4_1, Q8_0 = TARGETS
F32 = FLOAT_FORMATS[0]


def format_id(fmt: Format) -> str:
    return fmt.name


def make_rows(source: Format, N: int, K: int) -> Bytes:
    """Return float rows as a file has them: of very different sizes, with a constant run, a zero one, and outliers."""
    rng = np.random.default_rng([source.number, N, K])
    values = (rng.standard_normal((N, K)) * 10.0 ** rng.integers(-4, 2, (N, 1))).astype(np.float32)
    values[0, : K // 2] = 0.3
    values[-1, K // 2 :] = 0
    values.flat[:: max(1, values.size // 9)] *= 8
    return to_file(source, values)


def to_file(source: Format, values: Floats) -> Bytes:
    if source.name == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype("<f2" if source.name == "F16" else "<f4").view(np.uint8)


def quantize(kernels: ModuleType, fmt: Format, values: Floats, **options: Any) -> Any:
    return kernels.PackedMatrix.quantize(fmt.number, F32.number, [to_file(F32, values)], *values.shape, **options)


def all_rows(matrix: Any) -> Floats:
    rows: Floats = matrix.dequantize_rows(np.arange(matrix.N, dtype=np.int32))
    return rows


@pytest.mark.parametrize(("N", "K"), [(1, 32), (15, 64), (16, 576), (90, 96)])
@pytest.mark.parametrize("source", FLOAT_FORMATS, ids=format_id)
@pytest.mark.parametrize("fmt", TARGETS, ids=format_id)
def test_the_bytes_are_those_of_the_definition(
    kernels: ModuleType, fmt: Format, source: Format, N: int, K: int
) -> None:
    rows = make_rows(source, N, K)
    expected = quantize_rows(dequantize(source, rows), GgufType[fmt.name])
    matrix = kernels.PackedMatrix.quantize(fmt.number, source.number, [rows], N, K)
    assert np.array_equal(matrix.data, kernels.PackedMatrix.pack(fmt.number, [expected], N, K).data)


def test_eight_bits_are_those_of_gguf(kernels: ModuleType) -> None:
    values = dequantize(F32, make_rows(F32, 90, 576))
    values[1, :32] = np.arange(-16, 16) / 2  # ties, once divided by the scale
    values[1, 0] = 127
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    packed = kernels.PackedMatrix.pack(Q8_0.number, [expected], 90, 576)
    assert np.array_equal(quantize(kernels, Q8_0, values).data, packed.data)


@pytest.mark.parametrize("shape", ["normal", "uniform", "heavy"])
def test_four_bits_err_less_than_those_from_minimum_and_maximum(kernels: ModuleType, shape: str) -> None:
    rng = np.random.default_rng(5)
    draw = {"normal": rng.standard_normal, "uniform": rng.random, "heavy": lambda size: rng.standard_t(4, size)}[shape]
    values = draw((64, 1024)).astype(np.float32)
    plain = gguf.quants.dequantize(
        gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1), gguf.GGMLQuantizationType.Q4_1
    )
    error = np.square(all_rows(quantize(kernels, Q4_1, values)) - values).reshape(-1, 32).sum(axis=1)
    plain_error = np.square(plain - values).reshape(-1, 32).sum(axis=1)
    assert (error <= plain_error * 1.0001).all()
    assert error.sum() < 0.95 * plain_error.sum()


def test_eight_bits_err_by_half_a_step_at_most(kernels: ModuleType) -> None:
    values = np.random.default_rng(6).standard_normal((64, 1024)).astype(np.float32)
    step = np.abs(values).reshape(64, -1, 32).max(axis=2).repeat(32, axis=1) / 127
    rounding_of_the_scale = 127 * 2.0**-11
    assert (np.abs(all_rows(quantize(kernels, Q8_0, values)) - values) <= (0.5 + rounding_of_the_scale) * step).all()


@pytest.mark.parametrize("steps", [10, 12, 15])
def test_weights_that_were_on_a_grid_of_four_bits_find_it_again(kernels: ModuleType, steps: int) -> None:
    rng = np.random.default_rng(7)
    q = rng.integers(0, steps + 1, (32, 8, 32))
    q[:, :, :2] = 0, steps
    scale = rng.uniform(0.01, 0.02, (32, 8, 1)).astype(np.float16).astype(np.float32)
    values = (scale * (q - 8)).astype(np.float32)
    error = np.abs(all_rows(quantize(kernels, Q4_1, values.reshape(32, 256))).reshape(values.shape) - values)
    assert (error < 0.02 * scale).all()


@pytest.mark.parametrize("K", [1, 31, 33, 600])
@pytest.mark.parametrize("fmt", TARGETS, ids=format_id)
def test_rows_need_not_be_whole_groups(kernels: ModuleType, fmt: Format, K: int) -> None:
    values = dequantize(F32, make_rows(F32, 17, K))
    assert_same_bits(all_rows(quantize(kernels, fmt, values)), rounded(values, GgufType[fmt.name]))


@pytest.mark.parametrize("rows", [1, 3, 67])
@pytest.mark.parametrize("fmt", TARGETS, ids=format_id)
def test_products_with_a_part_of_a_group_equal_those_with_zeros_behind(
    kernels: ModuleType, fmt: Format, rows: int
) -> None:
    rng = np.random.default_rng(8)
    values = rng.standard_normal((17, 75)).astype(np.float32)
    x = rng.standard_normal((rows, 75)).astype(np.float32)
    longer = np.pad(values, ((0, 0), (0, 21)), mode="edge"), np.pad(x, ((0, 0), (0, 21)))
    int8, floats = [], []
    for w, activations in ((values, x), longer):
        matrix, y = quantize(kernels, fmt, w), np.empty((2, rows, 17), np.float32)
        kernels.gemm_int8(matrix, kernels.quantize_rows(activations), y[0])
        kernels.gemm_f32(matrix, activations, y[1])
        int8.append(y[0])
        floats.append(y[1])
    assert_same_bits(*int8)
    assert_same_bits(*floats)


@pytest.mark.parametrize("fmt", TARGETS, ids=format_id)
def test_any_number_of_threads_rounds_the_same(kernels: ModuleType, fmt: Format) -> None:
    values = dequantize(F32, make_rows(F32, 90, 512))
    one = quantize(kernels, fmt, values)
    for num_threads in (2, 64):
        assert np.array_equal(quantize(kernels, fmt, values, num_threads=num_threads).data, one.data)


def test_row_order_and_pieces_are_those_of_pack(kernels: ModuleType) -> None:
    values = dequantize(F32, make_rows(F32, 90, 64))
    order = np.random.default_rng(0).permutation(90).astype(np.int32)
    pieces = [to_file(F32, values[:7]), to_file(F32, values[7:])]
    matrix = kernels.PackedMatrix.quantize(Q4_1.number, F32.number, pieces, 90, 64, row_order=order)
    assert_same_bits(all_rows(matrix), rounded(values, GgufType.Q4_1)[order])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70000.0], ids=str)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("fmt", TARGETS, ids=format_id)
def test_a_value_without_a_float16_scale_is_refused(
    kernels: ModuleType, fmt: Format, num_threads: int, value: float
) -> None:
    values = np.ones((90, 64), np.float32)
    values[71, 40] = value
    with pytest.raises(ValueError, match="row 71 holds a value that is not finite or above 65504"):
        quantize(kernels, fmt, values, num_threads=num_threads)


def test_the_largest_values_are_rounded(kernels: ModuleType) -> None:
    values = np.tile(np.float32([65504, -65504]), (16, 32))
    for fmt in TARGETS:
        assert np.abs(all_rows(quantize(kernels, fmt, values)) - values).max() <= 65504 * 2.0**-10


@pytest.mark.parametrize(("fmt", "source"), [(3, 0), (8, 0), (0, 0), (7, 7)], ids=str)
def test_other_formats_are_refused(kernels: ModuleType, fmt: int, source: int) -> None:
    with pytest.raises(ValueError, match="floats can be rounded to Q8_0 and Q4_1 only"):
        kernels.PackedMatrix.quantize(fmt, source, [np.zeros(34, np.uint8)], 1, 32)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_matrix_is_restored_from_its_data(kernels: ModuleType, num_threads: int) -> None:
    matrix = quantize(kernels, Q4_1, dequantize(F32, make_rows(F32, 90, 75)))
    data = np.array(matrix.data)
    restored = kernels.PackedMatrix.restore(Q4_1.number, data, 90, 75, num_threads)
    data[:] = 0
    assert (restored.N, restored.K, restored.format) == (90, 75, Q4_1.number)
    assert np.array_equal(restored.data, matrix.data)


def test_data_of_another_size_is_refused(kernels: ModuleType) -> None:
    with pytest.raises(ValueError, match="the bytes of the matrix must be 320, got 319"):
        kernels.PackedMatrix.restore(Q4_1.number, np.zeros(319, np.uint8), 16, 32)


def test_the_data_outlives_the_name_of_its_matrix(kernels: ModuleType) -> None:
    data = quantize(kernels, Q8_0, np.ones((16, 32), np.float32)).data
    assert not data.flags.writeable
    assert np.bincount(data).argmax() == 255  # 127 + 128
