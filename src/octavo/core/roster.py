"""Who waits, who runs on which seat, who has ended: the one place where a request changes its status.

The scheduler decides; this carries out. A running request has a seat and block tables, any other has neither.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import TYPE_CHECKING

from octavo.core.request import Request, RequestStatus
from octavo.core.request_queue import RequestQueue
from octavo.core.step import EngineCoreOutput, Fault, FinishReason
from octavo.observe import events as ev

if TYPE_CHECKING:
    from octavo.core.kv_cache_manager import KVCacheManager


class Roster:
    """All requests that have not ended."""

    def __init__(self, num_seats: int, manager: KVCacheManager, events: ev.EventSink) -> None:
        self.waiting = RequestQueue()
        self.running: list[Request] = []
        """In order of rank: the last is the first to be preempted."""
        self.step_id = 0
        """Of the last step that was planned."""
        self.num_preemptions = 0
        """For want of blocks: a step that has to be computed again is none."""
        self.released_seats: list[int] = []
        """Given up since the last plan."""
        self._manager = manager
        self._events = events
        self._alive: dict[str, set[Request]] = {}
        """Per request id, the completions that are born and have not ended."""
        self._free_seats = list(reversed(range(num_seats)))

    def __len__(self) -> int:
        """Return the requests that have not ended; completions of one prompt count once."""
        return len(self._alive)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._alive

    def completions(self, request_id: str) -> list[Request]:
        """Return the completions of a request that are born and have not ended, in order of rank."""
        return sorted(self._alive.get(request_id, ()), key=lambda request: request.rank)

    @property
    def has_free_seat(self) -> bool:
        """Whether another request could run."""
        return bool(self._free_seats)

    def enqueue(self, request: Request) -> None:
        """Let a request that has just been born wait. Mutates: self."""
        self._alive.setdefault(request.request_id, set()).add(request)
        self.waiting.push(request)

    def seat(self, request: Request) -> None:
        """Give a seat to a request that has its tables, and that is not in the queue. Mutates: self, request."""
        self._alive[request.request_id].add(request)
        request.seat = self._free_seats.pop()
        request.status = RequestStatus.RUNNING
        request.defer_reason = None
        insort(self.running, request, key=lambda other: other.rank)

    def preempt(self, requests: Iterable[Request], reason: ev.PreemptReason, by_request_id: str | None = None) -> None:
        """Send running requests back to the queue, to be recomputed. Mutates: self, the manager, requests."""
        for request in requests:
            if self._events.enabled:
                key = (self.step_id, request.request_id, request.index)
                self._events.emit(ev.RequestPreempted(*key, reason, by_request_id, request.num_computed_tokens))
            self._vacate(request)
            request.status = RequestStatus.WAITING
            request.num_computed_tokens = request.num_scheduled_tokens = 0
            request.num_preemptions += 1
            self.num_preemptions += reason == "blocks"
            self.waiting.push(request)
        self.drop_finished()

    def end(self, request: Request, finish_reason: FinishReason, error: Fault | None = None) -> list[EngineCoreOutput]:
        """End a request before its time; return its last output, and one for each completion not brought to life.

        Mutates: as `retire`.
        """
        outputs = [take_output(request, finish_reason, None, error)]
        for index in range(request.params.n - request.num_unborn, request.params.n):
            seed = request.seed - request.index + index
            outputs.append(
                EngineCoreOutput(request.request_id, index, [], finish_reason=finish_reason, error=error, seed=seed)
            )
        self.retire(request, finish_reason, None)
        return outputs

    def retire(self, request: Request, finish_reason: FinishReason, stop_reason: int | str | None) -> None:
        """Take everything from an ended request; it stays on the running list until `drop_finished`.

        Mutates: self, the manager, request.
        """
        if self._events.enabled:
            key = (request.request_id, request.index)
            counts = (request.prompt_len, request.num_output_tokens, request.num_preemptions)
            self._events.emit(ev.RequestFinished(*key, finish_reason, stop_reason, *counts))
        self.forget(request)

    def forget(self, request: Request) -> None:
        """As `retire`, of a request that nobody has heard of yet. Mutates: as `retire`."""
        if request.status is RequestStatus.RUNNING:
            self._vacate(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        family = self._alive[request.request_id]
        family.remove(request)
        if not family:
            del self._alive[request.request_id]

    def drop_finished(self) -> None:
        """Take off the running list, all at once, who no longer runs. Mutates: self."""
        self.running = [request for request in self.running if request.status is RequestStatus.RUNNING]

    def _vacate(self, request: Request) -> None:
        """Take seat and blocks from a running request."""
        self._manager.free(request)
        self._free_seats.append(request.seat)
        self.released_seats.append(request.seat)
        request.seat = -1


def take_output(
    request: Request,
    finish_reason: FinishReason | None = None,
    stop_reason: int | str | None = None,
    error: Fault | None = None,
) -> EngineCoreOutput:
    """Return an output with all tokens of a completion that were not told yet. Mutates: request."""
    output = EngineCoreOutput(
        request.request_id,
        request.index,
        new_token_ids=request.token_ids[request.num_told_tokens :].tolist(),
        new_logprobs=request.untold_logprobs or None,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        error=error,
        num_cached_tokens=max(request.num_cached_tokens, 0),
        num_preemptions=request.num_preemptions,
        seed=request.seed,
    )
    request.num_told_tokens = request.num_tokens
    request.untold_logprobs = []
    return output
