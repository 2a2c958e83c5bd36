"""Slots of recurrent states: what a request starts from, where a step leaves a snapshot, what remains at the end.

A snapshot is a slot's worth of memory, published at the node of the prefix that it stands for: immutable, and evicted
with everything else. It is left at the last block border of a prompt, every so many tokens of a long one, and where two
prompts part; at its end a request's own slot becomes one. None is worth more than what runs: a step takes slots for
snapshots when everyone has what he needs, from memory that is free or only cached.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from octavo.cache_spec import OPEN_CHUNK, StateGroupSpec
from octavo.core.cache_groups import StateGroup
from octavo.core.step import Move, StateSave
from octavo.observe.events import EventSink, StateSaved

if TYPE_CHECKING:
    from octavo.cache_spec import CacheGroupSpec
    from octavo.core.block_pool import Block, BlockPool
    from octavo.core.prefix_index import PrefixIndex, PrefixNode
    from octavo.core.request import BlockTables, Request

SNAPSHOT_INTERVAL = 512
"""Tokens of a prompt between two snapshots: a multiple of every block size."""


class StateSlots:
    """The state groups of a cache; for a model without any, every method does nothing."""

    def __init__(
        self, specs: Sequence[CacheGroupSpec], pool: BlockPool, index: PrefixIndex, events: EventSink, interval: int
    ) -> None:
        """Make slots of which nobody has any.

        Args:
            interval: tokens of a prompt between two snapshots, a multiple of the block size; 0: take none.

        Raises: ValueError if slots do not keep what a snapshot is made of.
        """
        if interval and not all(spec.keeps_border for spec in specs if isinstance(spec, StateGroupSpec)):
            raise ValueError(f"prefix caching needs slots that keep their border: {specs}")
        self.groups = [StateGroup(group) for group, spec in enumerate(specs) if isinstance(spec, StateGroupSpec)]
        self._block_size = specs[0].block_size
        self._pool = pool
        self._index = index
        self._events = events
        self._interval = interval
        self._one_slot = [[int(other == group.group) for other in range(len(specs))] for group in self.groups]
        """Per state group, one block of it and none of the others."""
        self._saves: dict[tuple[PrefixNode, int], tuple[Request, int, Block]] = {}
        """Per node, which is pinned, and group: who leaves a snapshot in this step, at which position, and where."""

    def start(self, blocks: BlockTables, node: PrefixNode | None) -> None:
        """Give slots to a request that begins to run, with the snapshots of `node`, if any. Mutates: blocks, the pool.

        These are the last to be evicted for them; then their own memory is the slot, and is moved onto itself.
        """
        snapshots = [node.blocks[group.group] if node else None for group in self.groups]
        for snapshot in snapshots:
            if snapshot is not None:
                self._pool.touch(snapshot)
                self._pool.release(snapshot)
        for group, snapshot in zip(self.groups, snapshots, strict=True):
            slot = self._pool.allocate(group.group)
            blocks.slots.append(slot)
            if snapshot is None:
                blocks.moves.append(Move("clear_state", group.group, -1, slot.block_id))
            else:
                blocks.moves.append(Move("restore_state", group.group, snapshot.block_id, slot.block_id))

    def plan_saves(self, requests: Sequence[Request]) -> list[StateSave]:
        """Return the snapshots that a step of `requests` is to leave, after all else. Mutates: the pool, the index."""
        saves: list[StateSave] = []
        if not (self._interval and self.groups):
            return saves
        for row, request in enumerate(requests):
            blocks = request.blocks
            assert blocks is not None, "a planned request runs"
            for position in self._positions_to_save(request, blocks):
                start = blocks.num_published * self._block_size
                node = self._index.descend(
                    blocks.node, request.token_ids[start:position], self._block_size, request.cache_salt
                )
                for group, one_slot in zip(self.groups, self._one_slot, strict=True):
                    key = (node, group.group)
                    if node.blocks[group.group] or key in self._saves or not self._pool.can_allocate(one_slot):
                        continue
                    slot = self._pool.allocate(group.group)
                    self._index.pin(node)
                    self._saves[key] = (request, position, slot)
                    saves.append(StateSave(row, group.group, position, slot.block_id))
                self._index.unpin(node)
        return saves

    def publish_saves(self, failed: Collection[Request]) -> None:
        """Publish what a step left, except where a request's row failed. Mutates: the pool, the index."""
        for (node, _), (request, position, slot) in self._saves.items():
            if request not in failed:
                self._publish(request, position, node, slot)
        self.drop_saves()

    def drop_saves(self) -> None:
        """Take back the slots of a step's snapshots; unpublished ones are lost. Mutates: the pool, the index."""
        for (node, _), (_, _, slot) in self._saves.items():
            self._pool.release(slot)
            self._index.unpin(node)
        self._saves.clear()

    def free(self, request: Request, blocks: BlockTables) -> None:
        """Take a request's slots, which become snapshots of its last border if it was published. Mutates: pool, index.

        Not so if a step was planned that changes them, or if they are another's too.
        """
        border = request.num_computed_tokens // OPEN_CHUNK * OPEN_CHUNK
        is_settled = request.num_scheduled_tokens == 0 and not blocks.moves
        is_published = border == blocks.num_published * self._block_size > 0
        for group, slot in zip(self.groups, blocks.slots, strict=True):
            if is_settled and is_published and slot.ref_cnt == 1 and blocks.node.blocks[group.group] is None:
                self._publish(request, border, blocks.node, slot)
            self._pool.release(slot)

    def _positions_to_save(self, request: Request, blocks: BlockTables) -> list[int]:
        """Return where a snapshot is worth its memory among the tokens that a request computes in this step."""
        start, end = request.num_computed_tokens, request.num_computed_tokens + request.num_scheduled_tokens
        last = (request.prompt_len - 1) // self._block_size * self._block_size
        if start >= max(last, blocks.junction):
            return []
        first = (start // self._interval + 1) * self._interval
        wanted = {blocks.junction, last, *range(first, min(last, end) + 1, self._interval)}
        return sorted(position for position in wanted if start < position <= end)

    def _publish(self, request: Request, num_tokens: int, node: PrefixNode, slot: Block) -> None:
        self._index.attach(node, slot)
        if self._events.enabled:
            self._events.emit(StateSaved(request.request_id, request.index, slot.group, slot.block_id, num_tokens))
