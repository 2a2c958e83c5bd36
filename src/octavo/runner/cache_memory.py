"""The bytes of the KV cache: one lazily committed mapping per cache group, addressed by block id."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from octavo.config import MAX_CACHE_BLOCKS
from octavo.core.executor import CacheCapacity
from octavo.errors import ConfigError
from octavo.runner.lazy_memory import reserve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from octavo.cache_spec import CacheGroupSpec
    from octavo.core.step import Move

READ_SLACK_BYTES = 4096
"""Kept behind the last block, for kernels that load a full vector at the end of a tile."""


def plan_capacity(
    specs: Sequence[CacheGroupSpec], cache_bytes: int, num_blocks_override: int | None = None
) -> CacheCapacity:
    """Return what `cache_bytes` can hold: any one group alone may fill the whole ledger.

    Args:
        num_blocks_override: blocks of every group, instead of `cache_bytes`.

    Raises: `ConfigError` if a group would not get a single block.
    """
    if num_blocks_override is not None:
        if num_blocks_override < 1:
            raise ConfigError(f"num_gpu_blocks_override must be at least 1, got {num_blocks_override}.")
        ledger = num_blocks_override * sum(spec.block_bytes for spec in specs)
        return CacheCapacity(ledger, (num_blocks_override,) * len(specs))
    smallest = sum(spec.block_bytes for spec in specs)
    if cache_bytes < smallest:
        raise ConfigError(
            f"The KV cache may take {cache_bytes} bytes, but one block of each group takes {smallest}; raise "
            "kv_cache_memory_bytes or gpu_memory_utilization, or lower block_size."
        )
    return CacheCapacity(cache_bytes, tuple(min(cache_bytes // spec.block_bytes, MAX_CACHE_BLOCKS) for spec in specs))


class CacheMemory:
    """All blocks of all groups. Zero at birth, so that memory nobody wrote holds no NaN.

    Raises: `ConfigError` for more than the system can address.
    """

    def __init__(self, specs: Sequence[CacheGroupSpec], num_blocks: Sequence[int]) -> None:
        self.buffers: list[NDArray[np.uint8]] = []
        """Per group, the bytes of its blocks in id order, and `READ_SLACK_BYTES`."""
        self._block_bytes = [spec.block_bytes for spec in specs]
        self._mappings: list[mmap.mmap] = []
        for spec, count in zip(specs, num_blocks, strict=True):
            size = count * spec.block_bytes + READ_SLACK_BYTES
            try:
                mapping = reserve(size, huge_pages=True)
            except (OSError, OverflowError) as error:
                raise ConfigError(
                    f"The system has no address space for a KV cache of {size} bytes ({error}); lower "
                    "kv_cache_memory_bytes or num_gpu_blocks_override."
                ) from error
            self._mappings.append(mapping)
            self.buffers.append(np.frombuffer(mapping, np.uint8, size))

    def block(self, group: int, block_id: int) -> NDArray[np.uint8]:
        """Return the bytes of one block."""
        size = self._block_bytes[group]
        return self.buffers[group][block_id * size : (block_id + 1) * size]

    def apply(self, moves: Iterable[Move]) -> None:
        """Do the moves of a plan in order."""
        for move in moves:
            self.block(move.group, move.target)[:] = self.block(move.group, move.source)

    def release_blocks(self, group: int, block_ids: Iterable[int]) -> None:
        """Give the whole pages inside these blocks back to the system; their content is lost or stays, as it comes."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        for first, last in _runs(sorted(block_ids)):
            start = -(-first * self._block_bytes[group] // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (last + 1) * self._block_bytes[group] // mmap.PAGESIZE * mmap.PAGESIZE
            if end > start:
                self._mappings[group].madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Drop the mappings; the memory goes once no array looks at it any more. Idempotent."""
        self.buffers.clear()
        self._mappings.clear()


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """Return the first and last id of each stretch of consecutive ids."""
    runs: list[tuple[int, int]] = []
    for block_id in ids:
        if runs and block_id == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], block_id)
        else:
            runs.append((block_id, block_id))
    return runs
