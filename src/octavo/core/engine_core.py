"""ROLE 1: the loop. Takes requests and aborts from the inbox, runs a step at a time, and goes on when a step fails.

`check_fits`, `add_request`, `abort_request` and `cancel` are safe from any thread; the rest is for the engine's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from octavo.core.request import Request
from octavo.core.scheduler import StalledError
from octavo.errors import EngineDeadError, RequestError, StepCancelledError
from octavo.observe.events import NULL_SINK, EventSink, RequestRefused

if TYPE_CHECKING:
    from octavo.core.executor import Executor
    from octavo.core.scheduler import Scheduler
    from octavo.core.step import EngineCoreOutput, SchedulerOutput

MaskSource = Callable[["SchedulerOutput"], object]
"""Returns a plan's allowed-token bits per logit row, or None; works while the step is computed."""


class EngineStats(NamedTuple):
    """Counts for metrics: of this moment, then totals since the start."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Share of the KV cache that running requests hold, 0 to 1."""
    num_generated_tokens: int
    num_preemptions: int
    prefix_cache_queries: int
    """Tokens looked up in the prefix cache; hits are those found."""
    prefix_cache_hits: int


class EngineCore:
    """Control plane and data plane, put together by `step`."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        masks: MaskSource = lambda _: None,
        events: EventSink = NULL_SINK,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._masks = masks
        self._events = events
        self._lock = threading.Lock()
        self._inbox: deque[Request | str] = deque()
        """Requests to be added, and ids to be aborted, in order of arrival."""
        self._arriving: set[str] = set()
        """Ids of the requests in the inbox."""
        self._outputs: list[EngineCoreOutput] = []
        """Not yet returned."""
        self._is_alive = True

    def step(self) -> list[EngineCoreOutput]:
        """Run one step. The two planes meet here and nowhere else.

        Raises: what made the step fail; the plan is then still open, and `advance` undoes it.
        """
        plan = self.scheduler.schedule()
        handle = self.executor.submit(plan)
        masks = self._masks(plan)
        result = self.executor.sample(handle, masks)
        return self.scheduler.update(plan, result)

    def advance(self) -> list[EngineCoreOutput]:
        """Take the inbox, run one step if there is work, and return what came of both.

        A step that fails costs only the request that made it fail, which ends with "error"; finding it takes some
        steps. A cancelled step is computed again at the next call.

        Raises: `EngineDeadError` after `shutdown`; KeyboardInterrupt and its like, after undoing the step.
        """
        self._check_alive()
        self._take_inbox()
        scheduler = self.scheduler
        if len(scheduler.roster):
            try:
                self._outputs += self.step()
            except StalledError as error:
                self._outputs += scheduler.end_stalled(error)
            except StepCancelledError:
                scheduler.cancel_step()
            except Exception as error:
                if not scheduler.has_open_step:
                    raise  # a fault of the scheduler itself, not of a request
                self._outputs += scheduler.fail_step(error)
            except BaseException:
                if scheduler.has_open_step:
                    scheduler.cancel_step()
                raise
        outputs, self._outputs = self._outputs, []
        return outputs

    def has_unfinished(self) -> bool:
        """Whether `advance` has anything to do or to return."""
        return bool(self._inbox or self._outputs or len(self.scheduler.roster))

    def check_fits(self, prompt_len: int, max_tokens: int | None) -> int:
        """Return the `max_tokens` that a request of this prompt gets; None means as many as fit.

        Raises: `RequestError` if the request could not be served even alone; the message has the numbers.
        """
        return self.scheduler.admission.check_fits(prompt_len, max_tokens)

    def add_request(self, request: Request) -> None:
        """Post a request; it is seen at the next step.

        Mutates: the inbox, request.
        Raises: `RequestError` if it can never fit or its id is in use; `EngineDeadError` after `shutdown`.
        """
        self._check_alive()
        try:
            request.max_tokens = self.check_fits(request.prompt_len, request.max_tokens)
            with self._lock:
                if request.request_id in self._arriving or request.request_id in self.scheduler.roster:
                    raise RequestError(
                        f"request id {request.request_id!r} is in use; choose another, or wait until it has ended",
                        parameter="request_id",
                        value=request.request_id,
                    )
                self._arriving.add(request.request_id)
                self._inbox.append(request)
        except RequestError as error:
            if self._events.enabled:
                self._events.emit(RequestRefused(request.request_id, str(error)))
            raise

    def abort_request(self, request_id: str) -> None:
        """Post an abort; at the next step all completions of the request end with "abort". Unknown ids are ignored.

        Mutates: the inbox.
        """
        with self._lock:
            self._inbox.append(request_id)

    def cancel(self) -> None:
        """Stop the step that is being computed. Its members are recomputed at the next one, unless aborted before."""
        self.executor.cancel()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; false, and nothing done, while requests use some.

        Mutates: the KV cache manager.
        """
        return self.scheduler.manager.reset_prefix_cache()

    def stats(self) -> EngineStats:
        """Return the counts of this moment."""
        scheduler, roster, manager = self.scheduler, self.scheduler.roster, self.scheduler.manager
        return EngineStats(
            len(roster.running),
            len(roster.waiting),
            manager.usage(),
            scheduler.num_generated_tokens,
            roster.num_preemptions,
            manager.num_queried_tokens,
            manager.num_hit_tokens,
        )

    def check_integrity(self) -> None:
        """Assert that blocks, tables, ledger and index agree: for tests, and for an idle engine. Reads every block.

        Raises: AssertionError.
        """
        self.scheduler.manager.check_integrity(self.scheduler.roster.running)

    def shutdown(self) -> None:
        """Stop for good; idempotent. Requests that have not ended are dropped without an output.

        Mutates: self, the executor.
        """
        self._is_alive = False
        self.executor.shutdown()

    def _check_alive(self) -> None:
        """Raise `EngineDeadError` after `shutdown`."""
        if not self._is_alive:
            raise EngineDeadError("the engine was closed; make a new one")

    def _take_inbox(self) -> None:
        """Add and abort what was posted, in order."""
        while self._inbox:
            with self._lock:
                item = self._inbox.popleft()
                if isinstance(item, Request):
                    self.scheduler.add(item)
                    self._arriving.discard(item.request_id)
                    continue
            self._outputs += self.scheduler.abort(item)
