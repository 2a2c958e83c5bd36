"""What the engine decided, as it decides it: one small tuple per decision, sent to a sink.

Emitters test `sink.enabled` before they build an event, so that nothing is paid while nobody listens. Events hold
numbers and strings only, and no points in time: whoever listens stamps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

DeferReason = Literal["seats", "blocks", "token_budget"]
"""Why a waiting request was not admitted: no free seat, too few free blocks or slots, or no room in this step."""
PreemptReason = Literal["blocks", "step_failed", "step_cancelled", "fault_search"]
"""Why a running request lost its seat: others needed its blocks, its step failed or was cancelled, or suspects of a
failure run apart."""


class RequestRefused(NamedTuple):
    """A prompt or its parameters cannot be served; it did not become a request."""

    reason: str


class RequestAdmitted(NamedTuple):
    """A waiting request took a seat."""

    step_id: int
    request_id: str
    completion: int
    seat: int
    num_tokens: int
    """Prompt plus output so far."""
    num_cached_tokens: int
    """The part of them found in the prefix cache."""


class RequestDeferred(NamedTuple):
    """The first waiting request was not admitted; sent when the reason changes, not in every step."""

    step_id: int
    request_id: str
    completion: int
    reason: DeferReason
    num_running: int
    num_free_blocks: int
    """Blocks that each attention group could still give."""


class RequestPreempted(NamedTuple):
    """A running request lost its seat and blocks, and waits to be recomputed."""

    step_id: int
    request_id: str
    completion: int
    reason: PreemptReason
    by_request_id: str | None
    """Who needed the blocks; None where it was nobody's need. A request last in rank gives way for its own need."""
    num_computed_tokens: int
    """What it loses, unless its blocks are still cached when it returns."""


class RequestForked(NamedTuple):
    """A completion took a seat by sharing the blocks of another one of the same prompt."""

    step_id: int
    request_id: str
    parent_completion: int
    completion: int
    seat: int


class RequestFinished(NamedTuple):
    """A completion ended."""

    request_id: str
    completion: int
    finish_reason: str
    stop_reason: int | str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_preemptions: int


class PrefixCacheHit(NamedTuple):
    """The beginning of a request was found in the prefix cache and will not be computed."""

    request_id: str
    completion: int
    num_tokens: int
    """Tokens found, out of `num_queried_tokens`."""
    num_queried_tokens: int


class StateSaved(NamedTuple):
    """A snapshot of a request's recurrent states was cached; every later `PrefixCacheHit` restores one."""

    request_id: str
    completion: int
    group: int
    block_id: int
    num_tokens: int
    """The prefix that it stands for."""


class BlockAllocated(NamedTuple):
    """A free block or slot was handed out, and has one user."""

    group: int
    block_id: int


class BlockShared(NamedTuple):
    """A block or slot whose contents are known got one more user."""

    group: int
    block_id: int
    ref_cnt: int
    """Its users now; 1 if it was only cached."""


class BlockCopied(NamedTuple):
    """A request got a copy of its own of what others use too, because it is about to write there."""

    request_id: str
    completion: int
    group: int
    source: int
    target: int


class BlockReleased(NamedTuple):
    """A block or slot lost a user."""

    group: int
    block_id: int
    ref_cnt: int
    """Its users now. Without any it is free, or cached if it is published."""
    is_published: bool


class BlockEvicted(NamedTuple):
    """A cached block or snapshot nobody uses was given up, because its memory is needed."""

    group: int
    block_id: int


class StepPlanned(NamedTuple):
    """A plan is ready to be computed."""

    step_id: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    """Blocks of all attention groups that running requests hold; slots of recurrent states do not count."""
    num_free_blocks: int
    """Blocks that each attention group could still give."""
    num_computed_tokens: tuple[int, ...]
    """[R] tokens of each request that were computed before."""
    num_scheduled_tokens: tuple[int, ...]
    """[R] rows of each request in this step."""
    seats: tuple[int, ...]
    """[R] who they are: `RequestAdmitted` and `RequestForked` tell whose seat it is."""
    logit_seats: tuple[int, ...]
    """[N] who samples a token."""

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.seats)

    @property
    def num_tokens(self) -> int:
        """T, the rows of all requests."""
        return sum(self.num_scheduled_tokens)

    @property
    def num_logit_rows(self) -> int:
        """N."""
        return len(self.logit_seats)


class StepFinished(NamedTuple):
    """A plan was computed and accounted for."""

    step_id: int
    step_seconds: float
    """Wall time of the data plane."""
    native_seconds: float
    """The part of it spent inside native code."""
    forward_seconds: float = 0.0
    """The part of it until the hidden rows were computed; the rest is logits and sampling."""
    token_ids: tuple[int, ...] = ()
    """[N] the tokens, in the order of the plan's `logit_seats`; of a request that ends for it with an error, any."""


class StepFailed(NamedTuple):
    """A plan was not computed to its end; nothing of it was published."""

    step_id: int
    reason: str
    cancelled: bool
    request_ids: tuple[str, ...]
    guilty_request_id: str | None
    """The request that ends with an error for it; None while the search goes on."""


class EngineStalled(NamedTuple):
    """Requests wait, and nothing can run: a fault in the engine, which ends the first of them."""

    step_id: int
    waiting: tuple[tuple[str, str], ...]
    """(request id, reason) of each."""


Event = (
    RequestRefused
    | RequestAdmitted
    | RequestDeferred
    | RequestPreempted
    | RequestForked
    | RequestFinished
    | PrefixCacheHit
    | StateSaved
    | BlockAllocated
    | BlockShared
    | BlockCopied
    | BlockReleased
    | BlockEvicted
    | StepPlanned
    | StepFinished
    | StepFailed
    | EngineStalled
)


class EventSink(Protocol):
    """Receives events: a refusal on the caller's thread, all others on the engine's. Returns soon, never raises."""

    enabled: bool
    """Emitters build no event while this is false."""
    wants_steps: bool
    """Nor one that comes with every step, `StepPlanned` and `StepFinished`, while this is."""
    wants_blocks: bool
    """Nor one of those that follow a block from hand to hand: allocated, shared, copied, released."""

    def emit(self, event: Event) -> None:
        """Take one event."""
        ...


class NullSink:
    """The sink that hears nothing."""

    enabled = False
    wants_steps = False
    wants_blocks = False

    def emit(self, event: Event) -> None:
        """Drop `event`."""


NULL_SINK: EventSink = NullSink()


class EventTee:
    """Several sinks that hear the same, but for steps, which not all want."""

    enabled = True

    def __init__(self, *sinks: EventSink) -> None:
        self._calls = tuple(sink.emit for sink in sinks)
        of_steps = tuple(sink.emit for sink in sinks if sink.wants_steps)
        self._calls_of: dict[type[Event], tuple[Callable[[Event], None], ...]] = {
            StepPlanned: of_steps,
            StepFinished: of_steps,
        }
        self.wants_steps = bool(of_steps)
        self.wants_blocks = any(sink.wants_blocks for sink in sinks)

    def emit(self, event: Event) -> None:
        """Pass `event` on to all that want it."""
        for emit in self._calls_of.get(type(event), self._calls):
            emit(event)
