"""Matrices are packed in the background: the same bytes, whoever packs them, and all there after `wait`."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from matrix_oracle import FORMATS, Format, make_file_rows

Q4_0 = next(fmt for fmt in FORMATS if fmt.name == "Q4_0")
SHAPES = ((90, 64), (1, 32), (4096, 512), (17, 96))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_after_waiting_each_matrix_is_as_if_packed_alone(kernels: ModuleType, fmt: Format, num_threads: int) -> None:
    shapes = [(N, -(-K // 256) * 256) for N, K in SHAPES]
    rows = [make_file_rows(fmt, N, K) for N, K in shapes]
    packing = kernels.Packing(num_threads)
    matrices = [packing.pack(fmt.number, [part], N, K) for part, (N, K) in zip(rows, shapes, strict=True)]
    packing.wait()
    for matrix, part, (N, K) in zip(matrices, rows, shapes, strict=True):
        assert np.array_equal(matrix.data, kernels.PackedMatrix.pack(fmt.number, [part], N, K).data)


def test_a_packing_goes_on_after_it_was_waited_for(kernels: ModuleType) -> None:
    packing = kernels.Packing(2)
    packing.wait()
    rows = make_file_rows(Q4_0, 90, 64)
    order = np.arange(90, dtype=np.int32)[::-1].copy()
    matrix = packing.pack(Q4_0.number, [rows[:40], rows[40:]], 90, 64, order)
    packing.wait()
    assert np.array_equal(matrix.data, kernels.PackedMatrix.pack(Q4_0.number, [rows], 90, 64, order).data)


def test_sources_and_matrices_that_nobody_else_holds_live_until_they_are_packed(kernels: ModuleType) -> None:
    packing = kernels.Packing(2)
    for _ in range(50):
        packing.pack(Q4_0.number, [make_file_rows(Q4_0, 90, 64).copy()], 90, 64)
    kept = packing.pack(Q4_0.number, [make_file_rows(Q4_0, 90, 64).copy()], 90, 64)
    packing.wait()
    assert np.array_equal(
        kept.data, kernels.PackedMatrix.pack(Q4_0.number, [make_file_rows(Q4_0, 90, 64)], 90, 64).data
    )


def test_a_packing_that_is_dropped_ends_with_work_left(kernels: ModuleType) -> None:
    packing = kernels.Packing(3)
    rows = make_file_rows(Q4_0, 4096, 512)
    matrices = [packing.pack(Q4_0.number, [rows], 4096, 512) for _ in range(20)]
    del packing
    assert all(matrix.N == 4096 for matrix in matrices)


@pytest.mark.parametrize("num_threads", [0, 1025])
def test_a_number_of_threads_that_makes_no_sense_is_refused(kernels: ModuleType, num_threads: int) -> None:
    with pytest.raises(ValueError, match=rf"num_threads must be .* got {num_threads}"):
        kernels.Packing(num_threads)
