"""Blocks of cache memory: ids, reference counts, free lists, and the one byte ledger over all cache groups.

A block is *used* (some request's table holds it), *cached* (nobody does, but its contents are published and may be
hit), or *free*. Handed out are free ones first (the last freed first, warm in the CPU's cache), then ids never touched
(their memory is not even committed), then the cached ones that were unused the longest, over all groups.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.observe.events import NULL_SINK, BlockAllocated, BlockEvicted, BlockReleased, BlockShared, EventSink

if TYPE_CHECKING:
    from octavo.core.executor import CacheCapacity
    from octavo.core.prefix_index import PrefixNode


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """One block."""

    group: int
    block_id: int
    ref_cnt: int = 0
    node: PrefixNode | None = None
    """Where it is published; None while its contents belong to its writer."""
    cached_at: int = 0
    """Ordinal of its last release: a smaller one was unused for longer."""


class BlockPool:
    """Hands out the blocks of all groups."""

    def __init__(
        self,
        capacity: CacheCapacity,
        block_bytes: Sequence[int],
        *,
        num_paged: int,
        on_evict: Callable[[Block], None],
        give_back: Callable[[int, list[int]], None],
        events: EventSink = NULL_SINK,
    ) -> None:
        """Make a pool.

        Args:
            block_bytes: per group, bytes of one block.
            num_paged: the groups, from the first, that have a block for every few tokens.
            on_evict: called with a cached block that is about to be reused; must unpublish it.
            give_back: called with (group, block ids) whose memory is to be returned to the system.
        """
        self.num_blocks = capacity.num_blocks
        self.ledger_bytes = capacity.ledger_bytes
        self.block_bytes = tuple(block_bytes)
        self._num_paged = num_paged
        self._on_evict = on_evict
        self._give_back = give_back
        self._events = events
        groups = range(len(self.num_blocks))
        self._cached: list[OrderedDict[Block, None]] = [OrderedDict() for _ in groups]
        """The oldest first; a dict that finds its first entry as fast as any."""
        self._free: list[deque[Block]] = [deque() for _ in groups]
        self._returned: list[list[Block]] = [[] for _ in groups]
        """Free blocks whose memory was given back."""
        self._num_touched = [0 for _ in groups]
        """Ids handed out at least once: 0 .. n - 1."""
        self.num_used = [0 for _ in groups]
        self.used_bytes = 0
        self.held_bytes = 0
        """Of used and cached blocks: what the ledger caps."""
        self._committed_bytes = 0
        self._clock = 0

    def can_allocate(self, counts: Sequence[int]) -> bool:
        """Whether `counts[g]` more blocks can be had in each group g, evicting cached ones where needed."""
        num_bytes = self.used_bytes
        for group, count in enumerate(counts):
            if self.num_used[group] + count > self.num_blocks[group]:
                return False
            num_bytes += count * self.block_bytes[group]
        return num_bytes <= self.ledger_bytes

    def num_free_blocks(self, reserved: Sequence[int] | None = None) -> int:
        """Return how many more blocks each paged group can give, beside those reserved per group; maybe below 0."""
        left, num_bytes = list(map(int.__sub__, self.num_blocks, self.num_used)), self.ledger_bytes - self.used_bytes
        if reserved is not None:
            left = list(map(int.__sub__, left, reserved))
            num_bytes -= sum(map(int.__mul__, self.block_bytes, reserved))
            if min(left) < 0:
                return -1
        return min(num_bytes // sum(self.block_bytes[: self._num_paged]), *left[: self._num_paged])

    def cached(self, group: int) -> Iterable[Block]:
        """Return the blocks of a group that nobody uses and that may be hit, the oldest first."""
        return self._cached[group]

    def num_used_paged(self) -> int:
        """Return the blocks in use, which slots and snapshots of recurrent states are not."""
        return sum(self.num_used[: self._num_paged])

    def allocate(self, group: int) -> Block:
        """Return an unpublished block with one user. The caller has made sure that there is one.

        Mutates: the pool; evicts cached blocks where needed.
        """
        num_bytes = self.block_bytes[group]
        has_id = self._free[group] or self._returned[group] or self._num_touched[group] < self.num_blocks[group]
        if not has_id:
            self._evict(group)
        while self.held_bytes + num_bytes > self.ledger_bytes:
            self._evict(self._oldest_group())
        if self._free[group]:
            block = self._free[group].pop()
        elif self._returned[group]:
            block = self._returned[group].pop()
            self._committed_bytes += num_bytes
        else:
            block = Block(group, self._num_touched[group])
            self._num_touched[group] += 1
            self._committed_bytes += num_bytes
        block.ref_cnt = 1
        self.num_used[group] += 1
        self.used_bytes += num_bytes
        self.held_bytes += num_bytes
        if self._events.wants_blocks:
            self._events.emit(BlockAllocated(group, block.block_id))
        return block

    def touch(self, block: Block) -> None:
        """Add a user to a block that is used or cached. Mutates: block; the pool, if it was cached."""
        if block.ref_cnt == 0:
            del self._cached[block.group][block]
            self.num_used[block.group] += 1
            self.used_bytes += self.block_bytes[block.group]
        block.ref_cnt += 1
        if self._events.wants_blocks:
            self._events.emit(BlockShared(block.group, block.block_id, block.ref_cnt))

    def release(self, block: Block) -> None:
        """Take a user from a block; without any, a published one is cached, another free. Mutates: block, the pool."""
        block.ref_cnt -= 1
        if self._events.wants_blocks:
            self._events.emit(BlockReleased(block.group, block.block_id, block.ref_cnt, block.node is not None))
        if block.ref_cnt:
            assert block.ref_cnt > 0, f"block {block.block_id} of group {block.group} was released too often"
            return
        group = block.group
        self.num_used[group] -= 1
        self.used_bytes -= self.block_bytes[group]
        if block.node is None:
            self.held_bytes -= self.block_bytes[group]
            self._free[group].append(block)
        else:
            self._clock += 1
            block.cached_at = self._clock
            self._cached[group][block] = None

    def trim(self) -> None:
        """Give back memory of free blocks, the longest free first, as far as committed memory exceeds the ledger.

        Only between steps: a planned copy may still read a block that became free.
        Mutates: the pool.
        """
        for group, free in enumerate(self._free):
            block_ids = []
            while free and self._committed_bytes > self.ledger_bytes:
                block = free.popleft()
                self._returned[group].append(block)
                self._committed_bytes -= self.block_bytes[group]
                block_ids.append(block.block_id)
            if block_ids:
                self._give_back(group, block_ids)

    def evict_all(self) -> None:
        """Forget all cached blocks. Mutates: the pool."""
        for group, cached in enumerate(self._cached):
            while cached:
                self._evict(group)

    def _oldest_group(self) -> int:
        """Return the group that has the block unused for longest."""
        return min((next(iter(cached)).cached_at, group) for group, cached in enumerate(self._cached) if cached)[1]

    def _evict(self, group: int) -> None:
        """Make the group's oldest cached block a free one."""
        assert self._cached[group], f"group {group} has no block left: the caller did not check"
        block, _ = self._cached[group].popitem(last=False)
        self._on_evict(block)
        self.held_bytes -= self.block_bytes[group]
        self._free[group].append(block)
        if self._events.enabled:
            self._events.emit(BlockEvicted(group, block.block_id))
