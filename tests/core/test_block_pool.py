from __future__ import annotations

import pytest
from cache_integrity import check_pool
from core_helpers import EventLog

from octavo.core.block_pool import Block, BlockPool
from octavo.core.executor import CacheCapacity
from octavo.core.prefix_index import PrefixNode
from octavo.observe.events import BlockEvicted


class Pool(BlockPool):
    """A pool whose blocks can be published by hand, and that notes what it gives back."""

    def __init__(self, num_blocks: tuple[int, ...], block_bytes: tuple[int, ...] = (1,), ledger: int = 100) -> None:
        self.given_back: list[tuple[int, int]] = []
        self.log = EventLog()
        super().__init__(
            CacheCapacity(ledger, num_blocks),
            block_bytes,
            num_paged=len(block_bytes),
            on_evict=self.unpublish,
            give_back=lambda group, ids: self.given_back.extend((group, block_id) for block_id in ids),
            events=self.log,
        )

    @staticmethod
    def unpublish(block: Block) -> None:
        block.node = None

    def cache(self, block: Block) -> None:
        """Publish a block and let it go."""
        block.node = PrefixNode(1, (0, b"", None), None, [])
        self.release(block)


def test_ids_never_touched_are_handed_out_in_order() -> None:
    pool = Pool((3,))
    assert [pool.allocate(0).block_id for _ in range(3)] == [0, 1, 2]


def test_the_block_freed_last_is_handed_out_first() -> None:
    pool = Pool((4,))
    blocks = [pool.allocate(0) for _ in range(3)]
    pool.release(blocks[0])
    pool.release(blocks[2])
    assert [pool.allocate(0).block_id for _ in range(3)] == [2, 0, 3]


def test_cached_blocks_are_evicted_only_when_nothing_else_is_left() -> None:
    pool = Pool((3,))
    cached = pool.allocate(0)
    pool.cache(cached)
    assert [pool.allocate(0).block_id for _ in range(2)] == [1, 2]
    assert pool.log.of(BlockEvicted) == []
    assert pool.allocate(0) is cached
    assert pool.log.of(BlockEvicted) == [BlockEvicted(0, 0)]


def test_the_block_unused_for_longest_is_evicted_first_over_all_groups() -> None:
    pool = Pool((2, 2), (10, 10), ledger=40)
    first, second = pool.allocate(1), pool.allocate(0)
    other = [pool.allocate(0), pool.allocate(1)]
    pool.cache(first)
    pool.cache(second)
    for block in other:
        pool.cache(block)
    pool.allocate(0)
    pool.allocate(1)
    evicted = [(event.group, event.block_id) for event in pool.log.of(BlockEvicted)]
    assert evicted[0] == (0, second.block_id), "group 0 has no id left and gives up its own oldest"
    assert (1, first.block_id) in evicted


def test_the_ledger_evicts_blocks_of_another_group() -> None:
    pool = Pool((4, 4), (10, 20), ledger=40)
    large = pool.allocate(1)
    pool.cache(large)
    for _ in range(3):
        pool.allocate(0)
    assert pool.log.of(BlockEvicted) == [BlockEvicted(1, large.block_id)]
    check_pool(pool)


def test_a_touched_block_leaves_the_middle_of_the_cached_list() -> None:
    pool = Pool((3,))
    blocks = [pool.allocate(0) for _ in range(3)]
    for block in blocks:
        pool.cache(block)
    pool.touch(blocks[1])
    assert {pool.allocate(0), pool.allocate(0)} == {blocks[0], blocks[2]}
    assert not pool.can_allocate([1])


def test_what_can_be_allocated_counts_ids_of_each_group_and_bytes_of_all() -> None:
    pool = Pool((3, 3), (10, 20), ledger=70)
    assert pool.can_allocate([3, 2])
    assert not pool.can_allocate([2, 3]), "80 bytes"
    assert not pool.can_allocate([4, 0]), "4 ids"
    assert pool.num_free_blocks() == 2
    pool.allocate(1)
    assert pool.num_free_blocks() == 1


def test_cached_blocks_count_as_free() -> None:
    pool = Pool((2,))
    for block in [pool.allocate(0), pool.allocate(0)]:
        pool.cache(block)
    assert pool.num_free_blocks() == 2


def test_memory_of_free_blocks_beyond_the_ledger_is_given_back_oldest_first() -> None:
    pool = Pool((4, 4), (10, 10), ledger=40)
    blocks = [pool.allocate(0) for _ in range(4)]
    for block in blocks:
        pool.release(block)
    held = [pool.allocate(1) for _ in range(2)]
    pool.trim()
    assert pool.given_back == [(0, 0), (0, 1)]
    pool.trim()
    assert len(pool.given_back) == 2, "once is enough"
    for block in held:
        pool.release(block)
    assert [pool.allocate(0).block_id for _ in range(4)] == [3, 2, 1, 0], "committed ones first"
    check_pool(pool)


def test_a_pool_within_its_ledger_gives_nothing_back() -> None:
    pool = Pool((4,), (10,), ledger=40)
    for block in [pool.allocate(0) for _ in range(4)]:
        pool.release(block)
    pool.trim()
    assert pool.given_back == []


def test_releasing_once_too_often_is_noticed() -> None:
    pool = Pool((2,))
    block = pool.allocate(0)
    pool.release(block)
    with pytest.raises(AssertionError, match="too often"):
        pool.release(block)


def test_all_cached_blocks_can_be_forgotten() -> None:
    pool = Pool((3,))
    used = pool.allocate(0)
    for block in [pool.allocate(0), pool.allocate(0)]:
        pool.cache(block)
    pool.evict_all()
    assert pool.held_bytes == pool.used_bytes == 1
    assert used.ref_cnt == 1
    check_pool(pool)


@pytest.mark.parametrize("damage", ["lost", "counted", "listed twice", "published"])
def test_integrity_notices(damage: str) -> None:
    pool = Pool((3,))
    blocks = [pool.allocate(0) for _ in range(3)]
    pool.release(blocks[0])
    check_pool(pool)
    if damage == "lost":
        pool._free[0].clear()
    elif damage == "counted":
        pool.used_bytes += 1
    elif damage == "listed twice":
        pool._free[0].append(blocks[0])
        pool.num_used[0] -= 1
    else:
        blocks[0].node = PrefixNode(1, (0, b"", None), None, [])
    with pytest.raises(AssertionError):
        check_pool(pool)
