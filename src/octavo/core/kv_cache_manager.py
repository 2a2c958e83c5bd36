"""ROLE 3: which blocks hold what, who shares them, what may be evicted. Ints only: the blocks' bytes live elsewhere.

A request's life here: `find_cached_prefix` and `adopt` at admission; per step `num_tokens_that_fit` and `allocate`
while planning, and `commit` once the step is known to have worked; then `free`. Only `commit` publishes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from octavo.core.block_pool import Block, BlockPool
from octavo.core.cache_groups import ceil_div, make_groups
from octavo.core.prefix_index import PrefixIndex, PrefixNode
from octavo.core.request import BlockTables, Request
from octavo.observe.events import NULL_SINK, EventSink, PrefixCacheHit

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
    ) -> None:
        """Make a manager with nothing cached.

        Args:
            give_back: takes (group, block ids) whose memory is to be returned: `Executor.release_blocks`.
        """
        if len({spec.block_size for spec in specs}) != 1 or len(specs) != len(capacity.num_blocks):
            raise ValueError(f"cache groups must share one block size and have a capacity each: {specs}, {capacity}")
        self.block_size = specs[0].block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.groups = make_groups(specs)
        self._windows = [group for group in self.groups if group.has_window]
        self.index = PrefixIndex(len(specs))
        self.pool = BlockPool(
            capacity,
            [spec.block_bytes for spec in specs],
            on_evict=self.index.detach,
            give_back=give_back,
            events=events,
        )
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
        most = (request.num_tokens - 1) // self.block_size
        nodes = self.index.walk(request.token_ids, self.block_size, request.cache_salt, most)
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
        for group in self.groups:
            first = group.first_needed_block(num_hit_tokens)
            hits = [node.blocks[group.group] for node in nodes[first:]]
            woken = sum(block is not None and block.ref_cnt == 0 for block in hits)
            counts.append(woken + min(lacking, group.most_blocks(request.num_tokens, chunk)))
        return counts

    def adopt(self, request: Request, nodes: Sequence[PrefixNode]) -> None:
        """Give a request that begins to run the tables of its cached prefix.

        Mutates: request, the pool.
        """
        assert request.blocks is None, "a waiting request owns no blocks"
        num_tokens = len(nodes) * self.block_size
        tables: list[list[Block | None]] = []
        for group in self.groups:
            first = group.first_needed_block(num_tokens)
            table: list[Block | None] = [None] * first
            table += [node.blocks[group.group] for node in nodes[first:]]
            tables.append(table)
        request.blocks = BlockTables(
            tables,
            num_left_behind=[group.first_needed_block(num_tokens) for group in self.groups],
            num_slots=num_tokens,
            node=nodes[-1] if nodes else self.index.root,
            num_published=len(nodes),
            next_commit=num_tokens + self.block_size,
        )
        self._hold(request.blocks)
        request.num_computed_tokens = num_tokens
        if self.enable_prefix_caching and request.reads_prefix_cache:
            self.num_queried_tokens += request.num_tokens
            self.num_hit_tokens += num_tokens
            if num_tokens and self._events.enabled:
                self._events.emit(PrefixCacheHit(request.request_id, request.index, num_tokens, request.num_tokens))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks, unless some are in use; return whether it was done.

        Mutates: the pool, the index.
        """
        if self.pool.used_bytes:
            return False
        self.pool.evict_all()
        return True

    # Planning

    def num_tokens_that_fit(self, request: Request, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` could be computed with the blocks that can be had; maybe 0."""
        blocks = request.blocks
        assert blocks is not None, "the request runs"
        num_rows = self.pool.num_free_rows() - self._tail_is_shared(request, blocks)
        if num_rows < 0:
            return 0
        return min(num_tokens, blocks.num_slots + num_rows * self.block_size - request.num_computed_tokens)

    def allocate(self, request: Request, num_tokens: int) -> None:
        """Extend the tables to hold `num_tokens` more, with a private copy of a shared tail. They must fit.

        Mutates: request, the pool; evicts cached blocks where needed.
        """
        blocks = request.blocks
        assert blocks is not None, "the request runs"
        if blocks.shares_tail:
            self._copy_tail(request, blocks)
        while blocks.num_slots < request.num_computed_tokens + num_tokens:
            for group, table in enumerate(blocks.tables):
                table.append(self.pool.allocate(group))
            blocks.num_slots += self.block_size

    def fork(self, parent: Request, child: Request) -> None:
        """Let `child` share all blocks of `parent`, which computes the last token of their prompt in this step.

        Mutates: parent, child, the pool.
        """
        source = parent.blocks
        assert source is not None, "a parent runs"
        source.shares_tail = child.prompt_len % self.block_size != 0
        child.blocks = BlockTables(
            [list(table) for table in source.tables],
            num_left_behind=list(source.num_left_behind),
            num_slots=source.num_slots,
            node=source.node,
            num_published=source.num_published,
            next_commit=source.next_commit,
            shares_tail=source.shares_tail,
        )
        self._hold(child.blocks)

    # Accounting

    def commit(self, request: Request) -> None:
        """Publish the blocks that computed tokens have filled, then drop those that a window left behind.

        Mutates: request, the pool, the index.
        """
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
        """Take all blocks from a request, the last first: of a cached prefix the longest parts are evicted first.

        Mutates: request, the pool, the index.
        """
        blocks = request.blocks
        assert blocks is not None, "the request runs"
        request.blocks = None
        release = self.pool.release
        for row in zip(*(reversed(table) for table in blocks.tables), strict=True):
            for block in row:
                if block is not None:
                    release(block)
        self.index.unpin(blocks.node)

    def _hold(self, blocks: BlockTables) -> None:
        """Count a new user for every block of the tables, and pin where they end."""
        for table in blocks.tables:
            for block in table:
                if block is not None:
                    self.pool.touch(block)
        self.index.pin(blocks.node)

    def _tail_is_shared(self, request: Request, blocks: BlockTables) -> bool:
        """Whether the next token would be written to a block that has other users."""
        if not blocks.shares_tail:
            return False
        tail = blocks.tables[0][request.num_computed_tokens // self.block_size]
        return tail is not None and tail.ref_cnt > 1

    def _copy_tail(self, request: Request, blocks: BlockTables) -> None:
        """Replace a shared tail by a private copy; the last of its users keeps it as it is."""
        if self._tail_is_shared(request, blocks):
            index = request.num_computed_tokens // self.block_size
            for group, table in enumerate(blocks.tables):
                shared = table[index]
                assert shared is not None, "no window leaves the tail behind"
                private = table[index] = self.pool.allocate(group)
                blocks.moves.append((group, shared.block_id, private.block_id))
                blocks.replaced.append((group, index))
                self.pool.release(shared)
        blocks.shares_tail = False

    def _publish(self, request: Request, blocks: BlockTables, index: int) -> None:
        """Publish the full block `index`, or swap it for the one that is published already: their bits are equal."""
        start = index * self.block_size
        token_bytes = request.token_ids[start : start + self.block_size].tobytes()
        node = self.index.child(blocks.node, token_bytes, request.cache_salt)
        self.index.pin(node)
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
        first_kept = self.groups[group].first_needed_block(request.num_computed_tokens)
        for index in range(first_kept - 1, blocks.num_left_behind[group] - 1, -1):
            block = table[index]
            assert block is not None, "it was kept until now"
            table[index] = None
            blocks.replaced.append((group, index))
            self.pool.release(block)
        blocks.num_left_behind[group] = max(first_kept, blocks.num_left_behind[group])

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Assert that tables, reference counts, free lists, ledger and index agree; `running` are all that own blocks.

        Raises: AssertionError.
        """
        running = list(running)
        self.pool.check_integrity()
        self.index.check_integrity(request.blocks.node for request in running if request.blocks is not None)
        users: Counter[Block] = Counter()
        writers: Counter[Block] = Counter()
        for request in running:
            blocks = request.blocks
            assert blocks is not None, f"running request {request.request_id} has no tables"
            assert {len(table) * self.block_size for table in blocks.tables} == {blocks.num_slots}, "ragged tables"
            next_block = request.num_computed_tokens // self.block_size
            for group, table in enumerate(blocks.tables):
                held = table[blocks.num_left_behind[group] :]
                assert not any(table[: blocks.num_left_behind[group]]), "a block left behind is still held"
                users.update(block for block in held if block is not None)
                assert None not in held, f"request {request.request_id} lacks a block that its window sees"
                tail = held[next_block - blocks.num_left_behind[group] :]
                assert all(block is not None and block.node is None for block in tail), "a published block is writable"
                if not blocks.shares_tail:
                    writers.update(block for block in tail if block is not None)
        assert all(block.ref_cnt == count for block, count in users.items()), "a reference count is wrong"
        assert sum(self.pool.num_used) == len(users), "blocks are used by nobody"
        assert all(users[block] == 1 for block in writers), "two requests may write to one block"
