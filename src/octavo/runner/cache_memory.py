"""The bytes of the cache: one lazily committed mapping per cache group, addressed by block id, or slot."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from octavo.cache_spec import StateGroupSpec
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
        num_blocks_override: blocks of every attention group, and at most as many slots of every state group: as many
            as `cache_bytes` then leave for them, at least one.

    Raises: `ConfigError` if a group would not get a single block.
    """
    row = sum(spec.block_bytes for spec in specs if not isinstance(spec, StateGroupSpec))
    slots = sum(spec.block_bytes for spec in specs if isinstance(spec, StateGroupSpec))
    if num_blocks_override is not None:
        if num_blocks_override < 1:
            raise ConfigError(f"num_gpu_blocks_override must be at least 1, got {num_blocks_override}.")
        num_slots = (cache_bytes - num_blocks_override * row) // slots if slots else 0
        num_slots = max(1, min(num_slots, num_blocks_override))
        num_blocks = tuple(num_slots if isinstance(spec, StateGroupSpec) else num_blocks_override for spec in specs)
        return CacheCapacity(num_blocks_override * row + num_slots * slots, num_blocks)
    if cache_bytes < row + slots:
        smallest = f"one block of each group takes {row}"
        if slots:
            smallest += f", and the recurrent states of one request {slots}"
        raise ConfigError(
            f"The KV cache may take {cache_bytes} bytes, but {smallest}; raise kv_cache_memory_bytes or "
            "gpu_memory_utilization, or lower block_size."
        )
    return CacheCapacity(cache_bytes, tuple(min(cache_bytes // spec.block_bytes, MAX_CACHE_BLOCKS) for spec in specs))


class CacheMemory:
    """All blocks of all groups. Zero at birth, so that memory nobody wrote holds no NaN.

    Raises: `ConfigError` for more than the system can address.
    """

    def __init__(self, specs: Sequence[CacheGroupSpec], num_blocks: Sequence[int]) -> None:
        self.buffers: list[NDArray[np.uint8]] = []
        """Per group, the bytes of its blocks in id order, and `READ_SLACK_BYTES`."""
        self._specs = list(specs)
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
            if move.kind in ("copy_block", "copy_state"):
                self.block(move.group, move.target)[:] = self.block(move.group, move.source)
            else:
                self._begin_state(move)

    def _begin_state(self, move: Move) -> None:
        """Clear a slot, or fill it from a snapshot, which may be its own memory. Open rows are written before read."""
        spec = self._specs[move.group]
        assert isinstance(spec, StateGroupSpec), f"{move.kind} is for states"
        border, end = spec.snapshot_floats, spec.snapshot_floats + spec.conv_floats
        target = self._layers(move.group, move.target)
        if move.kind == "clear_state":
            target[:, :end] = 0
        else:
            target[:, :border] = self._layers(move.group, move.source)[:, :border]
            target[:, border:end] = target[:, spec.state_floats : border]

    def _layers(self, group: int, slot: int) -> NDArray[np.float32]:
        """Return a slot as [layers, floats of a layer]."""
        return self.block(group, slot).view(np.float32).reshape(self._specs[group].num_layers, -1)

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
