"""Who runs in the next step, how many tokens each, and who has to give way: the decisions behind `Scheduler.schedule`.

The rules: waiting requests own nothing; only a running request that needs a block preempts, and only who ranks below
it, itself if it is the last; admission never preempts; a chunk shrinks before anyone is preempted. So the request that
ranks first always advances, and each request becomes the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.core.request import Request, RequestStatus
from octavo.observe import events as ev

if TYPE_CHECKING:
    from octavo.config import SchedulerConfig
    from octavo.core.admission import AdmissionPolicy
    from octavo.core.chunking import ChunkSizer
    from octavo.core.fault_search import FaultSearch
    from octavo.core.kv_cache_manager import KVCacheManager
    from octavo.core.roster import Roster


@dataclass(eq=False)
class StepPlanner:
    """Hands out the seats, blocks and tokens of one step after the other."""

    config: SchedulerConfig
    manager: KVCacheManager
    roster: Roster
    admission: AdmissionPolicy
    chunk_sizer: ChunkSizer
    search: FaultSearch
    events: ev.EventSink

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Forget the last step."""
        self.num_decoding = 0
        """Running requests that lack one token; after `plan`, those of them that are in it."""
        self._budget = self._prefill_budget = self.config.max_num_batched_tokens
        self._planned: list[Request] = []
        self._prefilling: list[Request] = []
        """Running requests that lack more than one token."""
        self._has_preempted = False

    def plan(self) -> tuple[list[Request], dict[Request, list[Request]]]:
        """Return who computes tokens, decode rows first, and the children of those who fork.

        Mutates: self, the roster, the manager, requests: seats, blocks and `num_scheduled_tokens` are given.
        """
        self._begin()
        self._schedule_running()
        self._admit_waiting()
        planned = [request for request in self._planned if request.status is RequestStatus.RUNNING]
        self.num_decoding = len(planned) - sum(request.num_scheduled_tokens > 0 for request in self._prefilling)
        return planned, self._fork_at_last_prompt_rows(planned)

    def _schedule_running(self) -> None:
        """Give tokens to running requests: one each to those that lack one, then the rest of the budget by rank."""
        decoding: list[Request] = []
        for request in self.roster.running:
            lacks_one = request.num_tokens - request.num_computed_tokens == 1
            (decoding if lacks_one else self._prefilling).append(request)
        self.num_decoding = len(decoding)
        if self.config.enable_chunked_prefill and any(request.is_streamed for request in decoding):
            self._prefill_budget = self.chunk_sizer.most_beside_streams(self.num_decoding)
        running, planned = RequestStatus.RUNNING, self._planned
        for request in decoding:
            if self._budget == 0:
                return
            if request.status is not running:
                continue
            blocks = request.blocks
            assert blocks is not None, "a running request has tables"
            if request.num_computed_tokens >= blocks.num_slots or blocks.shares_tail:
                if not self._make_room(request, 1):
                    continue
                self.manager.allocate(request, 1)
            request.num_scheduled_tokens = 1
            self._budget -= 1
            planned.append(request)
        for request in self._prefilling:
            if min(self._budget, self._prefill_budget) == 0:
                return
            if request.status is running:
                self._give_chunk(request, self._chunk(request.num_tokens - request.num_computed_tokens))

    def _admit_waiting(self) -> None:
        """Admit waiting requests in order of rank, until one has to go on waiting; none in a step that preempted."""
        while not self._has_preempted:
            request = self.search.next_waiting() if self.search.is_active else self.roster.waiting.peek()
            if request is None:
                return
            reason = self._try_to_admit(request)
            if reason is not None:
                self._note_deferred(request, reason)
                return

    def _try_to_admit(self, request: Request) -> ev.DeferReason | None:
        """Give a waiting request a seat and its first tokens, or return why not."""
        if not self.roster.has_free_seat:
            return "seats"
        if min(self._budget, self._prefill_budget) == 0:
            return "token_budget"
        nodes = self.manager.find_cached_prefix(request)
        lacking = request.num_tokens - len(nodes) * self.manager.block_size
        chunk = self._chunk(lacking)
        if chunk < lacking and not self.config.enable_chunked_prefill:
            return "token_budget"
        num_running = len(self.roster.running)
        if num_running and not self.admission.has_room(request, nodes, chunk, num_running, self._prefilling):
            return "blocks"
        self.roster.waiting.remove(request)
        self.manager.adopt(request, nodes)
        self.roster.seat(request)
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = request.num_computed_tokens
        if self.events.enabled:
            key = (self.roster.step_id, request.request_id, request.index, request.seat)
            self.events.emit(ev.RequestAdmitted(*key, request.num_tokens, request.num_computed_tokens))
        self._prefilling.append(request)
        self._give_chunk(request, chunk)
        return None

    def _chunk(self, lacking: int) -> int:
        """Return how many of the tokens a request lacks it may compute in this step, blocks aside."""
        chunk = min(lacking, self._budget, self._prefill_budget)
        has_company = len(self.roster.running) + len(self.roster.waiting) > 1
        if has_company and self.config.enable_chunked_prefill:
            chunk = min(chunk, self.chunk_sizer.most_of_one_prompt)
        return chunk

    def _give_chunk(self, request: Request, chunk: int) -> None:
        """Give a running request `chunk` tokens of the step, or as many as blocks can be had for."""
        num_tokens = self._make_room(request, chunk)
        if num_tokens:
            self.manager.allocate(request, num_tokens)
            request.num_scheduled_tokens = num_tokens
            self._budget -= num_tokens
            self._prefill_budget -= num_tokens
            self._planned.append(request)

    def _make_room(self, request: Request, num_tokens: int) -> int:
        """Return how many of `num_tokens` fit, preempting from the last in rank until one does; 0: it lost its own.

        With chunks switched off all have to fit.
        """
        least = 1 if self.config.enable_chunked_prefill else num_tokens
        while True:
            # Counted anew after each preemption: a tail that had been shared may have become its own.
            fits = self.manager.num_tokens_that_fit(request, num_tokens)
            if fits >= least:
                return fits
            last = self.roster.running[-1]
            # One token, of a decode row: prompts are given theirs by rank, so none that has any ranks last.
            self._budget += last.num_scheduled_tokens
            last.num_scheduled_tokens = 0
            self._has_preempted = True
            self.roster.preempt([last], "blocks", request.request_id)
            if last is request:
                return 0

    def _fork_at_last_prompt_rows(self, planned: list[Request]) -> dict[Request, list[Request]]:
        """Seat children of requests that reach the end of their prompt: they sample the same logits, and share blocks.

        After all else, so that nobody is preempted any more. Children that find no room are left for `update`.
        """
        forks: dict[Request, list[Request]] = {}
        for parent in planned:
            if not parent.num_unborn or parent.num_computed_tokens + parent.num_scheduled_tokens < parent.num_tokens:
                continue
            children = forks[parent] = []
            while parent.num_unborn and self._can_seat_child(parent):
                child = parent.spawn()
                self.manager.fork(parent, child)
                self.roster.seat(child)
                children.append(child)
                if self.events.enabled:
                    key = (self.roster.step_id, child.request_id, parent.index, child.index)
                    self.events.emit(ev.RequestForked(*key, child.seat))
        return forks

    def _can_seat_child(self, parent: Request) -> bool:
        """Whether a child may run at once: a seat, blocks for its own tail, and nobody waiting who goes first."""
        if not self.roster.has_free_seat or self.search.is_active:
            return False
        first = self.roster.waiting.peek()
        if first is not None and first.rank < parent.rank:
            return False
        return self.manager.pool.can_allocate([n + 1 for n in self.manager.blocks_to_go_on(len(self.roster.running))])

    def _note_deferred(self, request: Request, reason: ev.DeferReason) -> None:
        """Remember why the first in the queue waits, and say so if that is new."""
        if reason == request.defer_reason:
            return
        request.defer_reason = reason
        if self.events.enabled:
            key = (self.roster.step_id, request.request_id, request.index)
            num_free = self.manager.pool.num_free_blocks()
            self.events.emit(ev.RequestDeferred(*key, reason, len(self.roster.running), num_free))
