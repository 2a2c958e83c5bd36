"""Packed weights hold exactly the file's values."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matrix_oracle import (
    FORMATS,
    HALF_FIELDS,
    K_FORMATS,
    QUANTIZED_FORMATS,
    Floats,
    Format,
    assert_same_bits,
    dequantize,
    make_file_rows,
)

from octavo.formats.gguf_types import GgufType
from octavo.weights.packing import packed_bytes

Q4_0 = next(fmt for fmt in FORMATS if fmt.name == "Q4_0")

MOST_GROWTH = {"Q3_K": 1.05, "IQ4_NL": 1.14, "IQ4_XS": 1.21, "MXFP4": 1.21}
"""Packed bytes over file bytes, at shapes that fill their panels; 1.03 for the rest."""


def format_id(fmt: Format) -> str:
    return fmt.name


def all_rows(matrix: Any) -> Floats:
    rows: Floats = matrix.dequantize_rows(np.arange(matrix.N, dtype=np.int32))
    return rows


@pytest.mark.parametrize("N", [1, 15, 16, 17, 90])
@pytest.mark.parametrize("blocks", [1, 3, 8, 18])
@pytest.mark.parametrize("fmt", QUANTIZED_FORMATS, ids=format_id)
def test_rows_read_back_are_those_of_the_file(kernels: ModuleType, fmt: Format, N: int, blocks: int) -> None:
    K = fmt.block_values * (blocks if fmt not in K_FORMATS else min(blocks, 3))
    rows = make_file_rows(fmt, N, K)
    matrix = kernels.PackedMatrix.pack(fmt.number, [rows], N, K)
    assert_same_bits(all_rows(matrix), dequantize(fmt, rows))


@pytest.mark.parametrize("K", [1, 31, 32, 600])
@pytest.mark.parametrize("N", [1, 15, 16, 17, 90])
@pytest.mark.parametrize("fmt", FORMATS[:3], ids=format_id)
def test_float_rows_of_any_length_read_back_exactly(kernels: ModuleType, fmt: Format, N: int, K: int) -> None:
    rows = make_file_rows(fmt, N, K)
    matrix = kernels.PackedMatrix.pack(fmt.number, [rows], N, K)
    assert_same_bits(all_rows(matrix), dequantize(fmt, rows))


@pytest.mark.parametrize("fmt", [fmt for fmt in QUANTIZED_FORMATS if fmt.name != "Q4_Z"], ids=format_id)
def test_any_bytes_read_back_as_the_reference_has_them(kernels: ModuleType, fmt: Format) -> None:
    """Scales that are not finite, zero or subnormal included."""
    rows = np.random.default_rng(fmt.number).integers(0, 256, (33, 8 * fmt.block_bytes), dtype=np.uint8)
    K = 8 * fmt.block_values
    for at in HALF_FIELDS[fmt.name]:
        for row, half in enumerate([0x0000, 0x8000, 0x0001, 0x83FF, 0x7C00, 0xFC00, 0x7E01, 0x7BFF]):
            blocks = rows[row].reshape(8, fmt.block_bytes)
            blocks[:, at], blocks[:, at + 1] = half & 255, half >> 8
    if fmt.name == "MXFP4":
        rows[:4].reshape(4, 8, fmt.block_bytes)[:, :, 0] = [[0], [1], [2], [255]]
    with np.errstate(all="ignore"):
        expected = dequantize(fmt, rows)
    actual = all_rows(kernels.PackedMatrix.pack(fmt.number, [rows], 33, K))
    both_nan = np.isnan(actual) & np.isnan(expected)
    assert_same_bits(np.where(both_nan, 0, actual), np.where(both_nan, 0, expected))


def test_matrices_that_share_memory_do_not_touch_each_other(kernels: ModuleType) -> None:
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(60):
        fmt = QUANTIZED_FORMATS[rng.integers(len(QUANTIZED_FORMATS))]
        N, K = int(rng.integers(1, 600)), 256 * int(rng.integers(1, 4))
        rows = make_file_rows(fmt, N, K)
        kept.append((fmt, rows, kernels.PackedMatrix.pack(fmt.number, [rows], N, K)))
        if rng.random() < 0.3:
            del kept[rng.integers(len(kept))]
    for fmt, rows, matrix in kept:
        assert_same_bits(all_rows(matrix), dequantize(fmt, rows))


@pytest.mark.parametrize("K", [512, 768, 2048])
@pytest.mark.parametrize("fmt", FORMATS, ids=format_id)
def test_packing_adds_little(kernels: ModuleType, fmt: Format, K: int) -> None:
    rows = make_file_rows(fmt, 64, K)
    matrix = kernels.PackedMatrix.pack(fmt.number, [rows], 64, K)
    assert matrix.nbytes <= MOST_GROWTH.get(fmt.name, 1.03) * rows.nbytes
    assert 0 <= matrix.nbytes - packed_bytes(GgufType[fmt.name], 64 * K) < 4 * 64


def test_a_matrix_tells_its_shape_and_format(kernels: ModuleType) -> None:
    matrix = kernels.PackedMatrix.pack(Q4_0.number, [make_file_rows(Q4_0, 90, 64)], 90, 64)
    assert (matrix.N, matrix.K, matrix.format, matrix.num_panels) == (90, 64, Q4_0.number, 6)
    assert matrix.nbytes == 6 * 2 * 16 * 18


@pytest.mark.parametrize("fmt", FORMATS, ids=format_id)
def test_any_number_of_threads_packs_the_same(kernels: ModuleType, fmt: Format) -> None:
    rows = make_file_rows(fmt, 90, 512)
    for num_threads in (1, 2, 64):
        matrix = kernels.PackedMatrix.pack(fmt.number, [rows], 90, 512, num_threads=num_threads)
        assert_same_bits(all_rows(matrix), dequantize(fmt, rows))


def test_row_order_picks_and_permutes_rows(kernels: ModuleType) -> None:
    rows = make_file_rows(Q4_0, 90, 64)
    order = np.random.default_rng(0).permutation(90).astype(np.int32)[:50]
    matrix = kernels.PackedMatrix.pack(Q4_0.number, [rows], 50, 64, row_order=order)
    assert_same_bits(all_rows(matrix), dequantize(Q4_0, rows)[order])


def test_pieces_follow_one_another_inside_a_panel(kernels: ModuleType) -> None:
    rows = make_file_rows(Q4_0, 90, 64)
    matrix = kernels.PackedMatrix.pack(Q4_0.number, [rows[:7], rows[7:40].reshape(-1), rows[40:]], 90, 64)
    assert_same_bits(all_rows(matrix), dequantize(Q4_0, rows))


def test_rows_are_read_in_the_order_asked_for(kernels: ModuleType) -> None:
    rows = make_file_rows(Q4_0, 90, 64)
    matrix = kernels.PackedMatrix.pack(Q4_0.number, [rows], 90, 64)
    ids = np.array([89, 0, 17, 17], dtype=np.int32)
    assert_same_bits(matrix.dequantize_rows(ids), dequantize(Q4_0, rows)[ids])
    assert matrix.dequantize_rows(ids[:0]).shape == (0, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 17}, "format must be .* got 17"),
        ({"format": -1}, "format must be .* got -1"),
        ({"N": 0}, "N must be .* got 0"),
        ({"N": 91}, "the rows of the sources must be 91, got 90"),
        ({"K": 0}, "K must be .* got 0"),
        ({"K": 63}, "K is 63, not a multiple"),
        ({"K": 1 << 40}, "K must be .* got 1099511627776"),
        ({"K": (1 << 27) + 64}, "K must be .* got 134217792"),
        ({"N": (1 << 27) + 1}, "N must be .* got 134217729"),
        ({"K": 96}, "not a multiple of a row's 54"),
        ({"num_threads": 0}, "num_threads must be .* got 0"),
        ({"row_order": np.zeros(89, np.int32)}, "row_order must have 90 values, got 89"),
        ({"row_order": np.full(90, 90, np.int32)}, r"row_order must be in \[0, 89\], got 90"),
        ({"row_order": np.full(90, -1, np.int32)}, r"row_order must be in \[0, 89\], got -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_bad_argument_is_refused_by_name(kernels: ModuleType, changes: dict[str, object], message: str) -> None:
    arguments = {"format": Q4_0.number, "sources": [make_file_rows(Q4_0, 90, 64)[:, :35]], "N": 90, "K": 64} | changes
    if changes.get("K") != 96:
        arguments["sources"] = [make_file_rows(Q4_0, 90, 64)]
    with pytest.raises(ValueError, match=message):
        kernels.PackedMatrix.pack(**arguments)


@pytest.mark.parametrize("row", [-1, 90])
def test_a_row_that_does_not_exist_is_refused(kernels: ModuleType, row: int) -> None:
    matrix = kernels.PackedMatrix.pack(Q4_0.number, [make_file_rows(Q4_0, 90, 64)], 90, 64)
    with pytest.raises(ValueError, match=rf"ids must be in \[0, 89\], got {row}"):
        matrix.dequantize_rows(np.array([row], dtype=np.int32))
