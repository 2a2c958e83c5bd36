"""What must be true of the cache's bookkeeping between any two steps: blocks, slots, tables, ledger and index agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.core.block_pool import Block, BlockPool
from octavo.core.engine_core import EngineCore
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_index import PrefixIndex, PrefixNode
from octavo.core.request import BlockTables, Request


def check_engine(core: EngineCore) -> None:
    """Assert that all of an engine's bookkeeping agrees, between two steps. Reads every block."""
    check_manager(core.scheduler.manager, core.scheduler.roster.running)


def check_manager(manager: KVCacheManager, running: Iterable[Request]) -> None:
    """Assert that tables, slots and reference counts agree; `running` are all that own blocks."""
    running = list(running)
    check_pool(manager.pool)
    check_index(manager.index, (request.blocks.node for request in running if request.blocks is not None))
    assert not manager.states._saves, "slots of a step that is over are still held"
    users: Counter[Block] = Counter()
    writers: Counter[Block] = Counter()
    for request in running:
        blocks = request.blocks
        assert blocks is not None, f"running request {request.request_id} has no tables"
        held, writable = _blocks_of(manager, request, blocks)
        users.update(held)
        assert all(block.node is None for block in writable), "a published block or snapshot is writable"
        if not blocks.shares_tail:
            writers.update(writable)
    assert all(block.ref_cnt == count for block, count in users.items()), "a reference count is wrong"
    assert sum(manager.pool.num_used) == len(users), "blocks are used by nobody"
    assert all(users[block] == 1 for block in writers), "two requests may write to one block"


def _blocks_of(manager: KVCacheManager, request: Request, blocks: BlockTables) -> tuple[list[Block], list[Block]]:
    """Return all blocks and slots of a request, and those that it may write to."""
    block_size = manager.block_size
    assert len(blocks.slots) == len(manager.states.groups), f"request {request.request_id} lacks a slot"
    assert {len(table) * block_size for table in blocks.tables} == {blocks.num_slots}, "ragged tables"
    held, writable = list(blocks.slots), list(blocks.slots)
    for table, num_left_behind in zip(blocks.tables, blocks.num_left_behind, strict=True):
        assert not any(table[:num_left_behind]), "a block left behind is still held"
        kept = [block for block in table[num_left_behind:] if block is not None]
        assert len(kept) == len(table) - num_left_behind, f"request {request.request_id} lacks a block its window sees"
        held += kept
        writable += kept[request.num_computed_tokens // block_size - num_left_behind :]
    return held, writable


def check_pool(pool: BlockPool) -> None:
    """Assert that free + cached + used = total in every group, and that the ledger agrees."""
    held = committed = 0
    for group, total in enumerate(pool.num_blocks):
        cached, free = list(pool._cached[group]), [*pool._free[group], *pool._returned[group]]
        untouched = total - pool._num_touched[group]
        num_all = len(free) + untouched + len(cached) + pool.num_used[group]
        assert num_all == total, f"group {group} lost blocks: {num_all} of {total}"
        assert all(block.ref_cnt == 0 for block in cached + free), f"group {group} lists a used block as unused"
        assert all(block.node is not None for block in cached), f"group {group} caches an unpublished block"
        assert all(block.node is None for block in free), f"group {group} lists a published block as free"
        ages = [block.cached_at for block in cached]
        assert ages == sorted(ages), f"group {group} would not evict the oldest first"
        ids = [block.block_id for block in cached + free]
        assert len(set(ids)) == len(ids), f"group {group} lists a block twice"
        held += (pool.num_used[group] + len(cached)) * pool.block_bytes[group]
        committed += (pool._num_touched[group] - len(pool._returned[group])) * pool.block_bytes[group]
    used = sum(count * size for count, size in zip(pool.num_used, pool.block_bytes, strict=True))
    assert (used, held) == (pool.used_bytes, pool.held_bytes), "the ledger miscounts"
    assert committed == pool._committed_bytes, "committed memory is miscounted"
    assert held <= pool.ledger_bytes, f"{held} bytes held, more than the ledger's {pool.ledger_bytes}"


def check_index(index: PrefixIndex, pinned: Iterable[PrefixNode]) -> None:
    """Assert that links, blocks and keys agree; `pinned` has a node once for each of its pins."""
    nodes = index._nodes
    links = Counter(pinned)
    links.update(node.parent for node in nodes.values() if node.parent is not None)
    assert index.root.num_links == links[index.root], "the root miscounts its links"
    for key, node in nodes.items():
        assert node.key == key, f"node {node.uid} is filed under another key"
        held = [block for block in node.blocks if block is not None]
        assert all(block.node is node for block in held), f"a block of node {node.uid} names another node"
        assert node.num_links == links[node], f"node {node.uid} miscounts its links"
        assert held or node.num_links, f"node {node.uid} is held by nothing"
        assert node.parent is not None, f"node {node.uid} has no parent"
        assert node.parent is index.root or nodes.get(node.parent.key) is node.parent, "a parent was dropped"
