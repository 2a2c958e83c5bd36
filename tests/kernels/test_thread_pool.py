"""The pool alone: every chunk once, every stage after the one before, no CPU when idle."""

from __future__ import annotations

import os
import time
from types import ModuleType

import pytest

IDLE_CPU_FRACTION = 0.1
"""Of one core; a single thread that spins would use all of it."""


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_chunks", [1, 2, 13, 64])
def test_every_chunk_runs_once_and_after_the_stage_before(
    kernels: ModuleType, num_threads: int, num_chunks: int
) -> None:
    pool = kernels.ThreadPool(num_threads)
    assert pool.count_stages(5000, num_chunks) == 5001 * num_chunks


def test_more_threads_than_cores_lose_nothing(kernels: ModuleType) -> None:
    pool = kernels.ThreadPool(4 * (os.cpu_count() or 1) + 3)
    assert pool.count_stages(300, 100) == 301 * 100


def test_a_pool_runs_again_after_its_threads_went_to_sleep(kernels: ModuleType) -> None:
    pool = kernels.ThreadPool(3)
    for _ in range(20):
        time.sleep(0.001)
        assert pool.count_stages(10, 12) == 11 * 12


def test_a_walk_without_stages_ends(kernels: ModuleType) -> None:
    assert kernels.ThreadPool(2).count_stages(0, 4) == 4


def test_an_idle_pool_uses_no_cpu(kernels: ModuleType) -> None:
    pool = kernels.ThreadPool(3)
    pool.count_stages(100, 12)
    time.sleep(0.02)
    wall, cpu = time.perf_counter(), time.process_time()
    time.sleep(0.3)
    assert time.process_time() - cpu < IDLE_CPU_FRACTION * (time.perf_counter() - wall)


@pytest.mark.parametrize("num_threads", [0, -1, 1025])
def test_an_impossible_number_of_threads_is_refused(kernels: ModuleType, num_threads: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads must be .* got {num_threads}"):
        kernels.ThreadPool(num_threads)
