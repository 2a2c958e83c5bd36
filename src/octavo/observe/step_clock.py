"""When each phase of a step began and ended, worked out from the stamps of the events around it.

Events hold no points in time. A step is planned at the stamp of its `StepPlanned`, is accounted for at that of its
`StepFinished`, and tells how long the data plane took in between. It began when the one before ended, or, after a
pause, with the first thing heard of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from octavo.observe.events import RequestAdmitted, RequestFinished, StepFailed, StepFinished, StepPlanned

if TYPE_CHECKING:
    from octavo.observe.events import Event


class TimedStep(NamedTuple):
    """A step that was computed to its end.

    Units: seconds of the clock that stamped the events; each phase ends where the next one begins.
    """

    plan: StepPlanned
    result: StepFinished
    began_at: float
    planned_at: float
    forward_at: float
    """Hidden rows are computed."""
    sampled_at: float
    """Tokens are chosen."""
    ended_at: float
    """Tokens are given to their requests; those that ended have let go of their blocks."""

    @property
    def moments(self) -> tuple[float, float, float, float, float]:
        """The five points in time, in their order."""
        return (self.began_at, self.planned_at, self.forward_at, self.sampled_at, self.ended_at)


class StepClock:
    """Hears stamped events in their order, and returns a step with its times when it has ended."""

    def __init__(self) -> None:
        self._plan: StepPlanned | None = None
        self._planned_at = 0.0
        self._began_at: float | None = None
        """None while nothing has been heard of a next step."""
        self._num_alive = 0
        """Requests that have not ended, as far as known: with none, the engine may pause."""

    def hear(self, event: Event, now: float) -> TimedStep | None:
        """Take one event and its stamp. Mutates: self."""
        kind = type(event)
        if kind is StepPlanned:
            assert isinstance(event, StepPlanned)
            self._plan, self._planned_at = event, now
            self._num_alive = event.num_running + event.num_waiting
        elif kind is StepFinished:
            assert isinstance(event, StepFinished)
            return self._finish(event, now)
        elif kind is RequestFinished:
            self._num_alive -= 1
        elif kind is RequestAdmitted:
            self._began_at = now if self._began_at is None else self._began_at
        elif kind is StepFailed:
            self._plan, self._began_at = None, now
        return None

    def _finish(self, result: StepFinished, now: float) -> TimedStep | None:
        plan, self._plan = self._plan, None
        began = self._planned_at if self._began_at is None else self._began_at
        self._began_at = now if self._num_alive > 0 else None
        if plan is None or plan.step_id != result.step_id:
            return None
        sampled = min(self._planned_at + result.step_seconds, now)
        forward = min(self._planned_at + result.forward_seconds, sampled)
        return TimedStep(plan, result, began, self._planned_at, forward, sampled, now)
