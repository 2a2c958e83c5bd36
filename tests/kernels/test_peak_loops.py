"""The loops that measure the machine's limits."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_loop_counts_what_it_did(kernels: ModuleType, threads: int) -> None:
    assert kernels.int8_operations_per_second(threads, 0.002) > 1e8
    assert kernels.f32_operations_per_second(threads, 0.002) > 1e8
    assert kernels.bytes_read_per_second(np.ones(1 << 16, np.uint8), threads, 0.002) > 1e7


@pytest.mark.parametrize("size", [4096, 5000, 4096 + 511], ids=str)
def test_memory_of_any_size_is_read(kernels: ModuleType, size: int) -> None:
    assert kernels.bytes_read_per_second(np.ones(size, np.uint8), 1, 0.001) > 1e7


@pytest.mark.parametrize(
    ("threads", "seconds", "reason"),
    [(0, 0.1, "num_threads"), (2000, 0.1, "num_threads"), (1, 0.0, "seconds"), (1, 11.0, "seconds")],
    ids=["none", "many", "no-time", "long"],
)
def test_arguments_are_checked(kernels: ModuleType, threads: int, seconds: float, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kernels.int8_operations_per_second(threads, seconds)


def test_what_is_read_must_be_enough_for_all_threads(kernels: ModuleType) -> None:
    with pytest.raises(ValueError, match="the bytes of data"):
        kernels.bytes_read_per_second(np.zeros(4096, np.uint8), 2, 0.001)
