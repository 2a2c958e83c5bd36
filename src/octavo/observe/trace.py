"""Recorded events as a trace that chrome://tracing and ui.perfetto.dev open.

Process "engine" has the steps with their phases, and the blocks as they change hands; process "seats" one row per seat,
with the request that holds it and what it computed in each step; counters show the batch and the blocks in use. What
happened at one moment (a deferral, a preemption, an eviction) is an instant.

Source: "Trace Event Format", the JSON that Chrome's tracing reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.observe import events as ev
from octavo.observe.step_clock import StepClock, TimedStep

if TYPE_CHECKING:
    from octavo.observe.event_log import RecordedEvent

ENGINE, SEATS = 1, 2
"""Processes of the trace."""
_STEPS, _BLOCKS = 1, 2
"""Rows of the engine; seat s is row s + 1 of its process."""
_PHASES = ("schedule", "forward", "sample", "output")

_Entry = dict[str, Any]


def chrome_trace(recorded: Iterable[RecordedEvent]) -> dict[str, Any]:
    """Return a trace, ready for `json.dump`. Times are microseconds since the first event."""
    events = list(recorded)
    writer = _TraceWriter(events[0].at if events else 0.0)
    for entry in events:
        writer.hear(entry.event, entry.at)
    writer.close(events[-1].at if events else 0.0)
    rows = {_STEPS: "steps", _BLOCKS: "blocks"}
    named = [*_names(ENGINE, "engine", rows), *_names(SEATS, "seats", writer.seat_names())]
    return {"traceEvents": [*named, *writer.entries], "displayTimeUnit": "ms"}


class _Holder(NamedTuple):
    """Who holds a seat."""

    name: str
    num_known_tokens: int
    """That it had when it took the seat: rows after them are decode rows."""


class _TraceWriter:
    """Turns events into entries of a trace. What was under way before the first event is left out."""

    def __init__(self, origin: float) -> None:
        self.entries: list[_Entry] = []
        self._origin = origin
        self._clock = StepClock()
        self._holders: dict[int, _Holder] = {}
        """Per seat that is held."""
        self._seats: dict[tuple[str, int], int] = {}
        self._used_seats: set[int] = set()
        self._endings: list[tuple[str, int, float, str]] = []
        """Requests that ended while a step was open: (id, completion, time, how); told after their part in it."""
        self._is_open = False

    def hear(self, event: ev.Event, at: float) -> None:
        """Take one event."""
        step = self._clock.hear(event, at)
        if step is not None:
            self._write_step(step)
        if isinstance(event, ev.RequestAdmitted):
            numbers = {"num_tokens": event.num_tokens, "num_cached_tokens": event.num_cached_tokens}
            self._begin(event, at, event.num_tokens, numbers)
        elif isinstance(event, ev.RequestForked):
            self._begin(event, at, 0, {"parent_completion": event.parent_completion})
        elif isinstance(event, ev.RequestFinished):
            self._endings.append((event.request_id, event.completion, at, event.finish_reason))
        elif isinstance(event, ev.RequestPreempted):
            self._instant("preempted", at, event)
            self._endings.append((event.request_id, event.completion, at, "preempted"))
        elif isinstance(event, (ev.StepPlanned, ev.StepFinished, ev.StepFailed)):
            self._is_open = isinstance(event, ev.StepPlanned)
            if isinstance(event, ev.StepFailed):
                self._instant("step failed", at, event)
        else:
            name = _WORDS[type(event)]
            self._instant(name, at, event, _BLOCKS if name.startswith("block") else _STEPS)
        if not self._is_open:
            self._write_endings()

    def close(self, at: float) -> None:
        """End what is still under way."""
        self._write_endings()
        for request_id, completion in list(self._seats):
            self._end(request_id, completion, at, "running")

    def seat_names(self) -> dict[int, str]:
        """Return the name of every seat's row."""
        return {seat + 1: f"seat {seat}" for seat in sorted(self._used_seats)}

    def _write_step(self, step: TimedStep) -> None:
        plan, result = step.plan, step.result
        numbers = {"num_requests": plan.num_requests, "num_tokens": plan.num_tokens}
        self._add("B", f"step {plan.step_id}", ENGINE, _STEPS, step.began_at, args=numbers)
        for name, begin, end in zip(_PHASES, step.moments[:-1], step.moments[1:], strict=True):
            self._add("B", name, ENGINE, _STEPS, begin)
            self._add("E", name, ENGINE, _STEPS, end)
        self._add("E", f"step {plan.step_id}", ENGINE, _STEPS, step.ended_at)
        prefill = plan.num_tokens - plan.num_decode_tokens
        self._count("tokens", step.planned_at, decode=plan.num_decode_tokens, prefill=prefill)
        self._count("requests", step.planned_at, running=plan.num_running, waiting=plan.num_waiting)
        self._count("blocks in use", step.planned_at, used=plan.num_used_blocks)
        sampled = dict(zip(plan.logit_seats, result.token_ids, strict=True))
        rows = zip(plan.seats, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True)
        for seat, num_computed, num_scheduled in rows:
            if seat in self._holders:
                self._write_chunk(step, seat, num_computed, num_scheduled, sampled.get(seat))

    def _write_chunk(
        self, step: TimedStep, seat: int, num_computed: int, num_scheduled: int, token_id: int | None
    ) -> None:
        """Show what one request computed in a step."""
        is_decode = num_computed >= self._holders[seat].num_known_tokens
        name = "decode" if is_decode else f"prefill {num_scheduled}"
        args = {"num_computed_tokens": num_computed, "num_scheduled_tokens": num_scheduled, "token_id": token_id}
        self._add("B", name, SEATS, seat + 1, step.planned_at, args=args)
        self._add("E", name, SEATS, seat + 1, step.sampled_at)

    def _begin(
        self, event: ev.RequestAdmitted | ev.RequestForked, at: float, num_known: int, numbers: dict[str, int]
    ) -> None:
        name = f"request {event.request_id}" + (f", completion {event.completion}" if event.completion else "")
        self._holders[event.seat] = _Holder(name, num_known)
        self._seats[event.request_id, event.completion] = event.seat
        self._used_seats.add(event.seat)
        self._add("B", name, SEATS, event.seat + 1, at, args=numbers)

    def _write_endings(self) -> None:
        endings, self._endings = self._endings, []
        for ending in endings:
            self._end(*ending)

    def _end(self, request_id: str, completion: int, at: float, how: str) -> None:
        seat = self._seats.pop((request_id, completion), None)
        if seat is not None:
            self._add("E", self._holders.pop(seat).name, SEATS, seat + 1, at, args={"ended": how})

    def _instant(self, name: str, at: float, event: ev.Event, row: int = _STEPS) -> None:
        self._add("i", name, ENGINE, row, at, s="t", args=event._asdict())

    def _count(self, name: str, at: float, **values: int) -> None:
        self._add("C", name, ENGINE, 0, at, args=values)

    def _add(self, phase: str, name: str, process: int, thread: int, at: float, **more: Any) -> None:
        microseconds = round((at - self._origin) * 1e6, 3)
        self.entries.append({"ph": phase, "name": name, "pid": process, "tid": thread, "ts": microseconds, **more})


_WORDS: dict[type[ev.Event], str] = {
    ev.RequestRefused: "refused",
    ev.RequestDeferred: "deferred",
    ev.PrefixCacheHit: "prefix cache hit",
    ev.StateSaved: "state saved",
    ev.BlockAllocated: "block allocated",
    ev.BlockShared: "block shared",
    ev.BlockCopied: "block copied on write",
    ev.BlockReleased: "block released",
    ev.BlockEvicted: "block evicted",
    ev.EngineStalled: "stalled",
}


def _names(process: int, name: str, threads: dict[int, str]) -> Iterator[_Entry]:
    """Yield the metadata that names a process and its threads."""
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "ts": 0, "args": {"name": name}}
    for thread, label in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "ts": 0, "args": {"name": label}}
