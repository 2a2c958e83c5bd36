"""ROLE 3: which blocks hold what, who shares them, what may be evicted. Ints only: the blocks' bytes live elsewhere.

A request's life here: `find_cached_prefix` and `adopt` at admission; per step `num_tokens_that_fit` and `allocate`
while planning, and `commit` once the step is known to have worked; then `free`. Nothing is published before `commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from octavo.core.block_pool import Block, BlockPool
from octavo.core.cache_groups import CacheGroup, ceil_div, make_paged_groups
from octavo.core.prefix_index import PrefixIndex, PrefixNode
from octavo.core.request import BlockTables, Request
from octavo.core.state_slots import SNAPSHOT_INTERVAL, StateSlots
from octavo.core.step import Move
from octavo.observe.events import NULL_SINK, BlockCopied, EventSink, PrefixCacheHit

if TYPE_CHECKING:
    from octavo.cache_spec import CacheGroupSpec
    from octavo.core.executor import CacheCapacity


class KVCacheManager:
    """Block tables of running requests over all cache groups, and the prefix cache."""

    def __init__(
        self,
        specs: Sequence[CacheGroupSpec],
        capacity: CacheCapacity,
        *,
        enable_prefix_caching: bool,
        give_back: Callable[[int, list[int]], None],
        events: EventSink = NULL_SINK,
        snapshot_interval: int = SNAPSHOT_INTERVAL,
    ) -> None:
        """Make a manager with nothing cached.

        Args:
            give_back: takes (group, block ids) whose memory is to be returned: `Executor.release_blocks`.
            snapshot_interval: tokens of a prompt between two snapshots of its recurrent states.
        """
        self._paged = make_paged_groups(specs)
        if len(specs) != len(capacity.num_blocks):
            raise ValueError(f"cache groups must have a capacity each: {specs}, {capacity}")
        self.block_size = specs[0].block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._windows = [group for group in self._paged if group.has_window]
        self.index = PrefixIndex(len(specs))
        self.pool = BlockPool(
            capacity,
            [spec.block_bytes for spec in specs],
            num_paged=len(self._paged),
            on_evict=self.index.detach,
            give_back=give_back,
            events=events,
        )
        interval = snapshot_interval if enable_prefix_caching else 0
        self.states = StateSlots(specs, self.pool, self.index, events, interval)
        self.groups: list[CacheGroup] = [*self._paged, *self.states.groups]
        self._events = events
        self.num_queried_tokens = 0
        """Looked up in the prefix cache, since the start."""
        self.num_hit_tokens = 0

    def most_blocks(self, num_tokens: int, chunk: int) -> list[int]:
        """Return per group the most blocks a request of `num_tokens` holds at once, computed `chunk` at a time."""
        return [group.most_blocks(num_tokens, chunk) for group in self.groups]

    def num_bytes(self, blocks: Iterable[int]) -> int:
        """Return the bytes of that many blocks of each group."""
        return sum(count * size for count, size in zip(blocks, self.pool.block_bytes, strict=True))

    def could_ever_fit(self, blocks: Sequence[int]) -> bool:
        """Whether the empty cache could hold that many blocks of each group."""
        enough_ids = all(count <= total for count, total in zip(blocks, self.pool.num_blocks, strict=True))
        return enough_ids and self.num_bytes(blocks) <= self.pool.ledger_bytes

    def blocks_to_go_on(self, num_running: int) -> list[int]:
        """Return per group the blocks that running requests may need for a token each: one, or a slot of their own."""
        slots = [num_running - self.pool.num_used[group.group] for group in self.states.groups]
        return [num_running] * len(self._paged) + slots

    def blocks_to_finish(self, request: Request, chunk: int) -> list[int]:
        """Return per group the blocks that a running request still lacks for the tokens it has; at least one."""
        assert request.blocks is not None, "the request runs"
        lacking = max(1, ceil_div(request.num_tokens, self.block_size) - len(request.blocks.tables[0]))
        return [min(lacking, group.most_blocks(request.num_tokens, chunk)) for group in self.groups]

    def usage(self) -> float:
        """Return the share of the ledger that running requests hold, 0 to 1."""
        return self.pool.used_bytes / self.pool.ledger_bytes

    # The prefix cache

    def find_cached_prefix(self, request: Request) -> list[PrefixNode]:
        """Return the longest cached prefix of a waiting request that leaves at least one token to compute."""
        if not (self.enable_prefix_caching and request.reads_prefix_cache):
            return []
        nodes = self._walk(request)
        length, agreed = len(nodes), False
        while not agreed:
            hits = [group.longest_hit(nodes, length) for group in self.groups]
            agreed, length = min(hits) == length, min(hits)
        return nodes[:length]

    def blocks_to_admit(self, request: Request, nodes: Sequence[PrefixNode], chunk: int) -> list[int]:
        """Return per group the blocks by which use would grow if `request` ran its known tokens after `nodes`.

        That is what it lacks, plus the hits that nobody uses now: these are on the list of free blocks too.
        """
        num_hit_tokens = len(nodes) * self.block_size
        lacking = ceil_div(request.num_tokens, self.block_size) - len(nodes)
        counts = []
        for group in self._paged:
            first = group.first_needed_block(num_hit_tokens)
            hits = [node.blocks[group.group] for node in nodes[first:]]
            woken = sum(block is not None and block.ref_cnt == 0 for block in hits)
            counts.append(woken + min(lacking, group.most_blocks(request.num_tokens, chunk)))
        return counts + [1] * len(self.states.groups)

    def adopt(self, request: Request, nodes: Sequence[PrefixNode]) -> None:
        """Give a request that begins to run the tables of its cached prefix, and slots. Mutates: request, the pool."""
        assert request.blocks is None, "a waiting request owns no blocks"
        num_tokens = len(nodes) * self.block_size
        firsts = [group.first_needed_block(num_tokens) for group in self._paged]
        request.blocks = BlockTables(
            [[*[None] * first, *(node.blocks[g] for node in nodes[first:])] for g, first in enumerate(firsts)],
            num_left_behind=firsts,
            num_slots=num_tokens,
            node=nodes[-1] if nodes else self.index.root,
            num_published=len(nodes),
            next_commit=num_tokens + self.block_size,
        )
        self._hold(request.blocks)
        if self.states.groups:
            request.blocks.junction = len(self._walk(request)) * self.block_size
            self.states.start(request.blocks, nodes[-1] if nodes else None)
        request.num_computed_tokens = num_tokens
        if self.enable_prefix_caching and request.reads_prefix_cache:
            self.num_queried_tokens += request.num_tokens
            self.num_hit_tokens += num_tokens
            if num_tokens and self._events.enabled:
                self._events.emit(PrefixCacheHit(request.request_id, request.index, num_tokens, request.num_tokens))

    def _walk(self, request: Request) -> list[PrefixNode]:
        """Return the prefix of a waiting request that others have computed, cached or not, but for its last token."""
        most = (request.num_tokens - 1) // self.block_size
        return self.index.walk(request.token_ids, self.block_size, request.cache_salt, most)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; false, and nothing done, while requests use some. Mutates: the pool, the index."""
        if self.pool.used_bytes:
            return False
        self.pool.evict_all()
        return True

    # Planning

    def num_tokens_that_fit(self, request: Request, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` could be computed with the blocks that can be had; maybe 0."""
        blocks = request.blocks
        assert blocks is not None, "the request runs"
        copies = [block is not None for block in self._shared_tails(request, blocks)] if blocks.shares_tail else None
        num_free = self.pool.num_free_blocks(copies)
        if num_free < 0:
            return 0
        return min(num_tokens, blocks.num_slots + num_free * self.block_size - request.num_computed_tokens)

    def allocate(self, request: Request, num_tokens: int) -> None:
        """Extend the tables by `num_tokens`, which must fit, and copy what is shared. Mutates: request, the pool."""
        blocks = request.blocks
        assert blocks is not None, "the request runs"
        if blocks.shares_tail:
            self._copy_tails(request, blocks)
        while blocks.num_slots < request.num_computed_tokens + num_tokens:
            for group, table in enumerate(blocks.tables):
                table.append(self.pool.allocate(group))
            blocks.num_slots += self.block_size

    def fork(self, parent: Request, child: Request) -> None:
        """Let `child` share all of `parent`, which computes their prompt's last token now. Mutates: both, the pool."""
        source = parent.blocks
        assert source is not None, "a parent runs"
        source.shares_tail = bool(source.slots) or child.prompt_len % self.block_size != 0
        child.blocks = replace(
            source,
            tables=[list(table) for table in source.tables],
            num_left_behind=list(source.num_left_behind),
            slots=list(source.slots),
            moves=[],
            num_sent=-1,
            replaced=[],
        )
        self._hold(child.blocks)

    # Accounting

    def commit(self, request: Request) -> None:
        """Publish the blocks that are full, and drop those behind a window. Mutates: request, the pool, the index."""
        blocks = request.blocks
        assert blocks is not None, "the request runs"
        num_full = request.num_computed_tokens // self.block_size
        if self.enable_prefix_caching:
            for index in range(blocks.num_published, num_full):
                self._publish(request, blocks, index)
        for group in self._windows:
            self._drop_left_behind(request, blocks, group.group)
        blocks.next_commit = (num_full + 1) * self.block_size

    def free(self, request: Request) -> None:
        """Take all blocks, the last first: these are evicted first too. Mutates: request, the pool, the index."""
        blocks = request.blocks
        assert blocks is not None, "the request runs"
        request.blocks = None
        self.states.free(request, blocks)
        release = self.pool.release
        for row in zip(*(reversed(table) for table in blocks.tables), strict=True):
            for block in row:
                if block is not None:
                    release(block)
        self.index.unpin(blocks.node)

    def _hold(self, blocks: BlockTables) -> None:
        """Count a new user for every block and slot, and pin where the tables end."""
        for block in (*chain.from_iterable(blocks.tables), *blocks.slots):
            if block is not None:
                self.pool.touch(block)
        self.index.pin(blocks.node)

    def _shared_tails(self, request: Request, blocks: BlockTables) -> list[Block | None]:
        """Return per group the block that the next token would be written to, where it has other users."""
        index = request.num_computed_tokens // self.block_size
        tails = [table[index] if index < len(table) else None for table in blocks.tables]
        return [block if block is not None and block.ref_cnt > 1 else None for block in (*tails, *blocks.slots)]

    def _copy_tails(self, request: Request, blocks: BlockTables) -> None:
        """Replace what is shared and to be written by private copies; the last of its users keeps it as it is."""
        num_paged = len(blocks.tables)
        for group, shared in enumerate(self._shared_tails(request, blocks)):
            if shared is None:
                continue
            private = self.pool.allocate(group)
            if group < num_paged:
                index = request.num_computed_tokens // self.block_size
                blocks.tables[group][index] = private
                blocks.moves.append(Move("copy_block", group, shared.block_id, private.block_id))
            else:
                index = 0
                blocks.slots[group - num_paged] = private
                blocks.moves.append(Move("copy_state", group, shared.block_id, private.block_id))
            blocks.replaced.append((group, index))
            if self._events.wants_blocks:
                ids = (shared.block_id, private.block_id)
                self._events.emit(BlockCopied(request.request_id, request.index, group, *ids))
            self.pool.release(shared)
        blocks.shares_tail = False

    def _publish(self, request: Request, blocks: BlockTables, index: int) -> None:
        """Publish the full block `index`, or swap it for the one that is published already: their bits are equal."""
        start = index * self.block_size
        token_ids = request.token_ids[start : start + self.block_size]
        node = self.index.descend(blocks.node, token_ids, self.block_size, request.cache_salt)
        self.index.unpin(blocks.node)
        blocks.node, blocks.num_published = node, index + 1
        for group, table in enumerate(blocks.tables):
            own, known = table[index], node.blocks[group]
            assert own is not None, "a block is published before a window leaves it behind"
            if known is None:
                self.index.attach(node, own)
            elif known is not own:
                self.pool.touch(known)
                self.pool.release(own)
                table[index] = known
                blocks.replaced.append((group, index))

    def _drop_left_behind(self, request: Request, blocks: BlockTables, group: int) -> None:
        """Release the blocks that no token to come can see, the last first."""
        table = blocks.tables[group]
        first_kept = self._paged[group].first_needed_block(request.num_computed_tokens)
        for index in range(first_kept - 1, blocks.num_left_behind[group] - 1, -1):
            block = table[index]
            assert block is not None, "it was kept until now"
            table[index] = None
            blocks.replaced.append((group, index))
            self.pool.release(block)
        blocks.num_left_behind[group] = max(first_kept, blocks.num_left_behind[group])
