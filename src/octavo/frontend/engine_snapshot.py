"""Takes an engine's `EngineSnapshot`: copies what changes between two steps, and describes it afterwards."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING

from octavo.cache_spec import num_attention_groups
from octavo.frontend.engine_metrics import Counter, Gauge, as_histogram
from octavo.frontend.request_ids import public_request_id
from octavo.observe.snapshot import (
    SNAPSHOT_SCHEMA,
    BlockView,
    CacheGroupView,
    EngineSnapshot,
    KVCacheStats,
    LatenciesView,
    RequestView,
    SecondView,
)

if TYPE_CHECKING:
    from octavo.cache_spec import CacheGroupSpec
    from octavo.config import SchedulerConfig
    from octavo.core.block_pool import Block
    from octavo.core.request import Request
    from octavo.core.scheduler import Scheduler
    from octavo.frontend.engine_metrics import Metric
    from octavo.observe.history import StepHistory
    from octavo.observe.snapshot import WaitReason

LEFT_BEHIND = -1
"""The entry of a block table for a block that a sliding window left behind."""
_block_id, _id_and_ref_cnt = attrgetter("block_id"), attrgetter("block_id", "ref_cnt")
_SPEED_SECONDS = 10
"""Over which tokens per second are counted."""
_NO_LATENCIES = LatenciesView()


@dataclass(frozen=True, slots=True)
class EngineState:
    """What was copied between two steps: enough to describe the engine while it goes on."""

    running: tuple[RequestView, ...]
    waiting: tuple[RequestView, ...]
    ref_cnts: list[dict[int, int]]
    """Per group, the users of each block."""
    cached: list[tuple[int, ...]]
    last_minute: tuple[SecondView, ...]
    num_steps: int
    num_preemptions: int
    num_evictions: int
    mean_waste: float
    num_queried_tokens: int
    num_hit_tokens: int
    used_bytes: int
    held_bytes: int
    num_available_blocks: int
    peak_used_blocks: int


class EngineObserver:
    """Knows what an engine is like at any moment.

    Args:
        history: hears the engine's events.
        specs: of the cache.
        limits: of the scheduler.
    """

    def __init__(
        self, scheduler: Scheduler, history: StepHistory, specs: Sequence[CacheGroupSpec], limits: SchedulerConfig
    ) -> None:
        self._scheduler = scheduler
        self._history = history
        self._specs = specs
        self._limits = limits
        self._num_paged = num_attention_groups(specs)
        self._block_size = specs[0].block_size

    def copy_state(self) -> EngineState:
        """Copy what a snapshot tells. Runs on the engine's thread, between two steps or where an event is told."""
        scheduler, manager, totals = self._scheduler, self._scheduler.manager, self._history.totals()
        running = [request for request in scheduler.roster.running if request.blocks is not None]
        groups = range(len(self._specs))
        return EngineState(
            running=tuple(map(_running_view, running)),
            waiting=tuple(map(_waiting_view, scheduler.roster.waiting)),
            ref_cnts=[_ref_cnts(running, group) for group in groups],
            cached=[tuple(map(_block_id, manager.pool.cached(group))) for group in groups],
            last_minute=self._history.last_minute(),
            num_steps=totals.num_steps,
            num_preemptions=scheduler.roster.num_preemptions,
            num_evictions=totals.num_evictions,
            mean_waste=_share(totals.num_empty_slots, totals.num_held_slots),
            num_queried_tokens=manager.num_queried_tokens,
            num_hit_tokens=manager.num_hit_tokens,
            used_bytes=manager.pool.used_bytes,
            held_bytes=manager.pool.held_bytes,
            num_available_blocks=manager.pool.num_free_blocks(),
            peak_used_blocks=totals.peak_used_blocks,
        )

    def totals(self) -> list[Metric]:
        """Return what steps did, and how they used the cache, since the start. Runs on any thread."""
        totals = self._history.totals()
        return [
            Counter("octavo:steps", totals.num_steps),
            Counter("octavo:step_seconds", totals.step_seconds),
            Counter("octavo:step_native_seconds", totals.native_seconds),
            Counter("octavo:step_tokens", totals.num_prefill_rows, {"kind": "prefill"}),
            Counter("octavo:step_tokens", totals.num_decode_rows, {"kind": "decode"}),
            as_histogram("vllm:iteration_tokens_total", self._history.step_tokens),
            Counter("octavo:kv_cache_evictions", totals.num_evictions),
            Counter("octavo:kv_cache_slots_held", totals.num_held_slots),
            Counter("octavo:kv_cache_slots_empty", totals.num_empty_slots),
        ]

    def gauges(self, state: EngineState) -> list[Gauge]:
        """Return how the cache was used when the state was copied. Runs on any thread."""
        stats = self.describe(state).kv_cache
        return [
            Gauge("octavo:kv_cache_blocks_used", stats.num_used_blocks),
            Gauge("octavo:kv_cache_blocks_shared", stats.num_shared_blocks),
            Gauge("octavo:kv_cache_blocks_cached", stats.num_cached_blocks),
            Gauge("octavo:kv_cache_tokens_saved", stats.num_saved_tokens),
            Gauge("octavo:kv_cache_waste_perc", stats.waste),
        ]

    def describe(self, state: EngineState, latencies: LatenciesView = _NO_LATENCIES) -> EngineSnapshot:
        """Make a snapshot of copied state. Runs on any thread.

        Args:
            latencies: what callers waited for, which is known where text is made.
        """
        groups = tuple(self._group_view(state, group) for group in range(len(self._specs)))
        return EngineSnapshot(
            schema=SNAPSHOT_SCHEMA,
            taken_at=time.time(),
            num_steps=state.num_steps,
            max_num_seqs=self._limits.max_num_seqs,
            max_num_batched_tokens=self._limits.max_num_batched_tokens,
            max_model_len=self._limits.max_model_len,
            running=state.running,
            waiting=state.waiting,
            cache_groups=groups,
            kv_cache=self._stats(state, groups[: self._num_paged]),
            output_tokens_per_s=_output_tokens_per_s(state.last_minute),
            last_minute=state.last_minute,
            num_preemptions=state.num_preemptions,
            latencies=latencies,
        )

    def _group_view(self, state: EngineState, group: int) -> CacheGroupView:
        """Turn the tables of requests into the blocks of a group."""
        spec, ref_cnts = self._specs[group], state.ref_cnts[group]
        owners: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
        filled: dict[int, int] = {}
        for owner, request in enumerate(state.running):
            table = request.block_ids[group]
            num_full, rest = divmod(0 if spec.kind == "state" else request.num_computed_tokens, self._block_size)
            for block_id in table:
                owners[block_id] += (owner,)
            filled.update(dict.fromkeys(table[:num_full], self._block_size))
            for block_id, num_filled in zip(table[num_full:], chain([rest], repeat(0)), strict=False):
                filled[block_id] = max(filled.get(block_id, 0), num_filled)
        owners.pop(LEFT_BEHIND, None)
        return CacheGroupView(
            kind=spec.kind,
            block_bytes=spec.block_bytes,
            num_blocks=self._scheduler.manager.pool.num_blocks[group],
            used=tuple(
                BlockView(block_id, ref_cnts[block_id], users, filled[block_id])
                for block_id, users in sorted(owners.items())
            ),
            cached=state.cached[group],
        )

    def _stats(self, state: EngineState, paged: Sequence[CacheGroupView]) -> KVCacheStats:
        used = [block for group in paged for block in group.used]
        num_slots = len(used) * self._block_size
        num_empty = num_slots - sum(block.num_filled for block in used)
        num_saved_blocks = sum(block.ref_cnt - 1 for block in used)
        return KVCacheStats(
            block_size=self._block_size,
            capacity_bytes=self._scheduler.manager.pool.ledger_bytes,
            used_bytes=state.used_bytes,
            cached_bytes=state.held_bytes - state.used_bytes,
            num_used_blocks=len(used),
            num_cached_blocks=sum(len(group.cached) for group in paged),
            num_available_blocks=state.num_available_blocks,
            peak_used_blocks=state.peak_used_blocks,
            num_shared_blocks=sum(block.ref_cnt > 1 for block in used),
            num_saved_tokens=num_saved_blocks * self._block_size // self._num_paged,
            num_empty_slots=num_empty,
            waste=_share(num_empty, num_slots),
            mean_waste=state.mean_waste,
            num_evictions=state.num_evictions,
            num_queried_tokens=state.num_queried_tokens,
            num_hit_tokens=state.num_hit_tokens,
            hit_rate=_share(state.num_hit_tokens, state.num_queried_tokens),
        )


def _running_view(request: Request) -> RequestView:
    blocks = request.blocks
    assert blocks is not None, "a running request has tables"
    tables = [
        (LEFT_BEHIND,) * left + tuple(map(_block_id, table[left:] if left else table))
        for table, left in zip(blocks.tables, blocks.num_left_behind, strict=True)
    ]
    return _view(request, None, request.seat, (*tables, *((slot.block_id,) for slot in blocks.slots)))


def _waiting_view(request: Request) -> RequestView:
    return _view(request, request.defer_reason or "turn", None, ())


def _view(
    request: Request,
    waits_for: WaitReason | None,
    seat: int | None,
    block_ids: tuple[tuple[int, ...], ...],
) -> RequestView:
    return RequestView(
        request_id=public_request_id(request.request_id),
        completion=request.index,
        num_prompt_tokens=request.prompt_len,
        num_output_tokens=request.num_output_tokens,
        max_tokens=request.max_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_cached_tokens=max(request.num_cached_tokens, 0),
        num_preemptions=request.num_preemptions,
        seat=seat,
        waits_for=waits_for,
        num_published_blocks=request.blocks.num_published if request.blocks else 0,
        block_ids=block_ids,
        arrival=request.arrival,
    )


def _tables(running: Sequence[Request], group: int) -> Iterator[Sequence[Block | None]]:
    """Yield each request's table of a group, without what a window left behind."""
    for request in running:
        blocks = request.blocks
        assert blocks is not None, "a running request has tables"
        if group < len(blocks.tables):
            yield blocks.tables[group][blocks.num_left_behind[group] :]
        else:
            yield (blocks.slots[group - len(blocks.tables)],)


def _ref_cnts(running: Sequence[Request], group: int) -> dict[int, int]:
    """Return the users of each block of a group that somebody uses."""
    return dict(map(_id_and_ref_cnt, chain.from_iterable(_tables(running, group))))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _output_tokens_per_s(seconds: Sequence[SecondView]) -> float:
    """Return the mean over the last seconds, from the first in which there was a step."""
    recent = [entry for entry in seconds if 0 < entry.age <= _SPEED_SECONDS] or list(seconds[-1:])
    if not recent or recent[0].age > _SPEED_SECONDS:
        return 0.0
    return sum(entry.num_output_tokens for entry in recent) / max(1, recent[0].age)
