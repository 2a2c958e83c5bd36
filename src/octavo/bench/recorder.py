"""Hears an engine's events and keeps each step as one record with times: what all figures are worked out from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.observe.events import StepFinished, StepPlanned

if TYPE_CHECKING:
    from octavo.observe.events import Event


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step that was computed to its end.

    Shapes: R requests.
    """

    num_tokens: int
    num_decode_tokens: int
    num_logit_rows: int
    num_computed_tokens: tuple[int, ...]
    """[R] tokens of each request that were computed before."""
    num_scheduled_tokens: tuple[int, ...]
    """[R] rows of each request."""
    loop_seconds: float
    """From the end of the step before to its own end; of a first step, from its plan to its end."""
    native_seconds: float
    """The part of it spent inside native code."""
    follows: bool
    """Whether a step came directly before, so that `loop_seconds` has all of the loop's work."""

    @property
    def is_prefill(self) -> bool:
        """Whether it holds only prompt rows."""
        return self.num_decode_tokens == 0

    @property
    def is_decode(self) -> bool:
        """Whether it holds only decode rows."""
        return self.num_decode_tokens == self.num_tokens


class StepRecorder:
    """An event sink. Read it while the engine is idle.

    Args:
        clock: seconds of a monotonic clock.
    """

    enabled = True
    wants_steps = True
    wants_blocks = False

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._heard: list[tuple[float, Event]] = []
        """With their times: they become records when these are asked for, so that hearing them costs a step little."""

    def emit(self, event: Event) -> None:
        """Take one event, on the engine's thread."""
        self._heard.append((self._clock(), event))

    def take(self) -> list[StepRecord]:
        """Return the steps since the last call; the next step counts as a first one."""
        heard, self._heard = self._heard, []
        steps: list[StepRecord] = []
        plan: StepPlanned | None = None
        began_at, last_end = 0.0, None
        for now, event in heard:
            if isinstance(event, StepPlanned):
                plan, began_at = event, now
            elif isinstance(event, StepFinished) and plan is not None and plan.step_id == event.step_id:
                since = began_at if last_end is None else last_end
                steps.append(_record(plan, event, now - since, follows=last_end is not None))
                last_end = now
        return steps


def _record(plan: StepPlanned, result: StepFinished, loop_seconds: float, *, follows: bool) -> StepRecord:
    return StepRecord(
        num_tokens=plan.num_tokens,
        num_decode_tokens=plan.num_decode_tokens,
        num_logit_rows=plan.num_logit_rows,
        num_computed_tokens=plan.num_computed_tokens,
        num_scheduled_tokens=plan.num_scheduled_tokens,
        loop_seconds=loop_seconds,
        native_seconds=result.native_seconds,
        follows=follows,
    )
