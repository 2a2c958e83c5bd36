"""Activation blocks: the rounding of gemm_int8's inputs."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
from matrix_oracle import GROUP, Floats, assert_same_bits, make_activations, quantize

BLOCK = np.dtype(
    [
        ("q", "i1", 32),
        ("scale", "<f4"),
        ("scale_sum", "<f4"),
        ("start_zp8", "<u4"),
        ("start_zp16", "<u4"),
        ("start_zp128", "<u4"),
        ("start_zp32", "<u4", 2),
        ("unused", "<u4"),
    ]
)


def quantized(kernels: ModuleType, x: Floats) -> npt.NDArray[np.void]:
    blocks: npt.NDArray[np.void] = kernels.quantize_rows(x).view(BLOCK)[:, :, 0]
    return blocks


def test_blocks_equal_the_oracle(kernels: ModuleType) -> None:
    x = make_activations(67, 576)
    blocks, expected = quantized(kernels, x), quantize(x)
    np.testing.assert_array_equal(blocks["q"], expected.q.reshape(67, -1, GROUP))
    assert_same_bits(blocks["scale"], expected.scale)
    assert_same_bits(blocks["scale_sum"], expected.scale_sum)


def starts(kernels: ModuleType, field: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The parts of each start: one sum, or on AVX2 two, over the first and the last two of every four k."""
    is_split = kernels.isa == "avx2"
    return np.ascontiguousarray(field)[..., None].view("<i2" if is_split else "<i4").astype(np.int64)


def test_sums_start_at_what_a_zero_point_adds(kernels: ModuleType) -> None:
    x = make_activations(67, 576)
    x[0] = 1.0  # the largest sums
    blocks = quantized(kernels, x)
    parts = starts(kernels, blocks["start_zp16"]).shape[-1]
    pairs = blocks["q"].astype(np.int64).reshape(67, -1, 2, 4, parts, 4 // parts).sum(axis=(3, 5))  # per half and part
    for name, zero_point in [("start_zp8", 8), ("start_zp16", 16)]:
        np.testing.assert_array_equal(starts(kernels, blocks[name]), -zero_point * pairs.sum(axis=2))
    np.testing.assert_array_equal(starts(kernels, blocks["start_zp32"]), -32 * pairs)
    if parts == 1:
        np.testing.assert_array_equal(starts(kernels, blocks["start_zp128"]), -128 * pairs.sum(axis=2))


@pytest.mark.parametrize("K", [1, 15, 16, 17, 31, 33, 600])
def test_a_short_last_group_is_filled_with_zeros(kernels: ModuleType, K: int) -> None:
    x = make_activations(3, K)
    padded = np.zeros((3, (K + GROUP - 1) // GROUP * GROUP), dtype=np.float32)
    padded[:, :K] = x
    np.testing.assert_array_equal(kernels.quantize_rows(x), kernels.quantize_rows(padded))


def test_halves_round_to_even(kernels: ModuleType) -> None:
    x = np.zeros((1, GROUP), dtype=np.float32)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -3.5]
    np.testing.assert_array_equal(quantized(kernels, x)["q"][0, 0, :6], [127, 0, 2, 2, 0, -4])


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-30], ids=str)
def test_values_too_small_to_count_are_zeros(kernels: ModuleType, size: float) -> None:
    block = quantized(kernels, np.full((1, GROUP), size, dtype=np.float32))[0, 0]
    assert block["scale"] == 0
    assert block["scale_sum"] == 0
    assert not block["q"].any()


@pytest.mark.parametrize("size", [1e-27, 3.4e38], ids=str)
def test_the_largest_value_is_127_at_any_scale(kernels: ModuleType, size: float) -> None:
    x = np.linspace(-size, size, GROUP, dtype=np.float32)[None]
    block = quantized(kernels, x)[0, 0]
    assert (block["q"][0], block["q"][-1]) == (-127, 127)


@pytest.mark.parametrize("place", [0, 15, 16, 31])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
def test_a_value_that_is_not_finite_shows_in_the_scale(kernels: ModuleType, poison: float, place: int) -> None:
    x = make_activations(1, GROUP).copy()
    x[0, place] = poison
    block = quantized(kernels, x)[0, 0]
    assert not np.isfinite(block["scale"])
    assert np.isnan(block["scale_sum"])
    assert not block["q"].any()
