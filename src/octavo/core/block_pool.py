"""Blocks of KV memory: ids, reference counts, free lists, and the one byte ledger over all cache groups.

A block is *used* (some request's table holds it), *cached* (nobody does, but its contents are published and may be
hit), or *free*. Handed out are free ones first (the last freed first, warm in the CPU's cache), then ids never touched
(their memory is not even committed), then the cached ones that were unused the longest, over all groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.observe.events import NULL_SINK, BlockEvicted, EventSink

if TYPE_CHECKING:
    from octavo.core.executor import CacheCapacity
    from octavo.core.prefix_index import PrefixNode


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """One block; also a link of its group's list of cached blocks."""

    group: int
    block_id: int
    ref_cnt: int = 0
    node: PrefixNode | None = None
    """Where it is published; None while its contents belong to its writer."""
    cached_at: int = 0
    """Ordinal of its last release: a smaller one was unused for longer."""
    prev: Block = field(init=False)
    next: Block = field(init=False)


class CachedList:
    """Cached blocks of one group, oldest first: a doubly linked list through the blocks, every operation O(1)."""

    __slots__ = ("_end", "size")

    def __init__(self, group: int) -> None:
        end = self._end = Block(group, -1)
        end.prev = end.next = end
        self.size = 0

    def append(self, block: Block) -> None:
        """Add `block` as the newest. Mutates: the list."""
        end = self._end
        block.prev, block.next = end.prev, end
        end.prev.next = end.prev = block
        self.size += 1

    def remove(self, block: Block) -> None:
        """Take `block` out, wherever it is. Mutates: the list."""
        block.prev.next, block.next.prev = block.next, block.prev
        self.size -= 1

    @property
    def oldest(self) -> Block | None:
        """The block unused for longest."""
        return self._end.next if self.size else None

    def blocks(self) -> list[Block]:
        """Return the blocks, oldest first."""
        found, block = [], self._end.next
        while block is not self._end:
            found.append(block)
            block = block.next
        return found


class BlockPool:
    """Hands out the blocks of all groups."""

    def __init__(
        self,
        capacity: CacheCapacity,
        block_bytes: Sequence[int],
        *,
        on_evict: Callable[[Block], None],
        give_back: Callable[[int, list[int]], None],
        events: EventSink = NULL_SINK,
    ) -> None:
        """Make a pool.

        Args:
            block_bytes: per group, bytes of one block.
            on_evict: called with a cached block that is about to be reused; must unpublish it.
            give_back: called with (group, block ids) whose memory is to be returned to the system.
        """
        self.num_blocks = capacity.num_blocks
        self.ledger_bytes = capacity.ledger_bytes
        self.block_bytes = tuple(block_bytes)
        self.row_bytes = sum(block_bytes)
        """Bytes of one block in every group."""
        self._on_evict = on_evict
        self._give_back = give_back
        self._events = events
        groups = range(len(self.num_blocks))
        self._cached = [CachedList(group) for group in groups]
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

    def num_free_rows(self) -> int:
        """Return how many more blocks every group can give at the same time."""
        by_bytes = (self.ledger_bytes - self.used_bytes) // self.row_bytes
        return min(by_bytes, *map(int.__sub__, self.num_blocks, self.num_used))

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
        return block

    def touch(self, block: Block) -> None:
        """Add a user to a block that is used or cached.

        Mutates: block; the pool, if it was cached.
        """
        if block.ref_cnt == 0:
            self._cached[block.group].remove(block)
            self.num_used[block.group] += 1
            self.used_bytes += self.block_bytes[block.group]
        block.ref_cnt += 1

    def release(self, block: Block) -> None:
        """Take a user from a block; without users a published one is cached, another is free.

        Mutates: block, the pool.
        """
        block.ref_cnt -= 1
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
            self._cached[group].append(block)

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
            while cached.size:
                self._evict(group)

    def _oldest_group(self) -> int:
        """Return the group that has the block unused for longest."""
        oldest = [cached.oldest for cached in self._cached]
        return min((block.cached_at, block.group) for block in oldest if block is not None)[1]

    def _evict(self, group: int) -> None:
        """Make the group's oldest cached block a free one."""
        block = self._cached[group].oldest
        assert block is not None, f"group {group} has no block left: the caller did not check"
        self._cached[group].remove(block)
        self._on_evict(block)
        self.held_bytes -= self.block_bytes[group]
        self._free[group].append(block)
        if self._events.enabled:
            self._events.emit(BlockEvicted(group, block.block_id))

    def check_integrity(self) -> None:
        """Assert that free + cached + used = total in every group, and that the ledger agrees.

        Raises: AssertionError.
        """
        held = committed = 0
        for group, total in enumerate(self.num_blocks):
            cached = self._cached[group].blocks()
            free = [*self._free[group], *self._returned[group]]
            untouched = total - self._num_touched[group]
            assert len(cached) == self._cached[group].size, f"group {group} miscounts its cached blocks"
            num_all = len(free) + untouched + len(cached) + self.num_used[group]
            assert num_all == total, f"group {group} lost blocks: {num_all} of {total}"
            assert all(block.ref_cnt == 0 for block in cached + free), f"group {group} lists a used block as unused"
            assert all(block.node is not None for block in cached), f"group {group} caches an unpublished block"
            assert all(block.node is None for block in free), f"group {group} lists a published block as free"
            ids = [block.block_id for block in cached + free]
            assert len(set(ids)) == len(ids), f"group {group} lists a block twice"
            held += (self.num_used[group] + len(cached)) * self.block_bytes[group]
            committed += (self._num_touched[group] - len(self._returned[group])) * self.block_bytes[group]
        used = sum(count * size for count, size in zip(self.num_used, self.block_bytes, strict=True))
        assert (used, held) == (self.used_bytes, self.held_bytes), "the ledger miscounts"
        assert committed == self._committed_bytes, "committed memory is miscounted"
        assert held <= self.ledger_bytes, f"{held} bytes held, more than the ledger's {self.ledger_bytes}"
