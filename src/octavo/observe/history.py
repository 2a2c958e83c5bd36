"""The last minute of an engine, second by second, and totals since its start. Always on.

Events are only noted when they are told, and worked through many at a time: between two steps the processor's caches
are cold, and the same code takes several times as long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from octavo.observe.distribution import STEP_TOKEN_EDGES, Distribution
from octavo.observe.events import BlockEvicted
from octavo.observe.step_clock import StepClock, TimedStep

if TYPE_CHECKING:
    from octavo.observe.events import Event
    from octavo.observe.snapshot import SecondView

SECONDS_KEPT = 60
_MOST_NOTED = 256
"""Events noted before they are worked through."""


class StepTotals(NamedTuple):
    """Sums over all steps since the start."""

    num_steps: int = 0
    step_seconds: float = 0.0
    """Of the data plane."""
    native_seconds: float = 0.0
    num_prefill_rows: int = 0
    num_decode_rows: int = 0
    peak_used_blocks: int = 0
    """Most blocks that running requests held at once."""
    num_evictions: int = 0
    num_held_slots: int = 0
    """Summed over steps: slots of the blocks in use. A slot is room for one token in one attention group."""
    num_empty_slots: int = 0
    """Those of them that held no token when the step was done."""


@dataclass(slots=True)
class _Second:
    """Sums over the steps that ended within one second of the clock."""

    second: int
    num_steps: int = 0
    num_tokens: int = 0
    num_output_tokens: int = 0
    num_requests: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    phases: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])

    def add(self, step: TimedStep) -> None:
        """Count one more step."""
        plan = step.plan
        self.num_steps += 1
        self.num_tokens += plan.num_tokens
        self.num_output_tokens += plan.num_logit_rows
        self.num_requests += plan.num_requests
        self.num_running, self.num_waiting = plan.num_running, plan.num_waiting
        self.num_used_blocks = max(self.num_used_blocks, plan.num_used_blocks)
        began, planned, forward, sampled, ended = step.moments
        phases = self.phases
        phases[0] += planned - began
        phases[1] += forward - planned
        phases[2] += sampled - forward
        phases[3] += ended - sampled


class StepHistory:
    """An event sink. Hears on the engine's thread; any thread may read.

    Args:
        block_size: tokens of a block.
        num_paged: attention groups, of which each has a table for every request.
        clock: seconds of a monotonic clock.
    """

    enabled = True
    wants_steps = True
    wants_blocks = False

    def __init__(self, block_size: int, num_paged: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._block_size = block_size
        self._num_paged = num_paged
        self._clock = clock
        self._noted: deque[tuple[float, Event]] = deque()
        self._lock = threading.Lock()
        """Held by who works through what is noted, so that it is done in order."""
        self._step_clock = StepClock()
        self._seconds: deque[_Second] = deque(maxlen=SECONDS_KEPT)
        self._totals = StepTotals()
        self.step_tokens = Distribution(STEP_TOKEN_EDGES)
        """As of the last `totals`."""

    def emit(self, event: Event) -> None:
        """Take one event, on the engine's thread."""
        self._noted.append((self._clock(), event))
        if len(self._noted) >= _MOST_NOTED:
            self._catch_up()

    def totals(self) -> StepTotals:
        """Return what all steps so far add up to."""
        self._catch_up()
        return self._totals

    def last_minute(self) -> tuple[SecondView, ...]:
        """Return the seconds in which a step ended, the oldest first."""
        from octavo.observe.snapshot import PhaseSeconds, SecondView  # for those who look; a start does without

        self._catch_up()
        now = int(self._clock())
        return tuple(
            SecondView(
                age=now - entry.second,
                num_steps=entry.num_steps,
                num_tokens=entry.num_tokens,
                num_output_tokens=entry.num_output_tokens,
                num_requests=entry.num_requests,
                num_running=entry.num_running,
                num_waiting=entry.num_waiting,
                num_used_blocks=entry.num_used_blocks,
                phases=PhaseSeconds(*entry.phases),
            )
            for entry in self._seconds.copy()
            if now - entry.second < SECONDS_KEPT
        )

    def _catch_up(self) -> None:
        """Work through what is noted."""
        with self._lock:
            for _ in range(len(self._noted)):
                now, event = self._noted.popleft()
                step = self._step_clock.hear(event, now)
                if step is not None:
                    self._add(step)
                elif type(event) is BlockEvicted:
                    self._totals = self._totals._replace(num_evictions=self._totals.num_evictions + 1)

    def _add(self, step: TimedStep) -> None:
        plan, block_size, totals = step.plan, self._block_size, self._totals
        lengths = map(int.__add__, plan.num_computed_tokens, plan.num_scheduled_tokens)
        num_empty = self._num_paged * sum([-length % block_size for length in lengths])
        self._totals = StepTotals(
            totals.num_steps + 1,
            totals.step_seconds + step.result.step_seconds,
            totals.native_seconds + step.result.native_seconds,
            totals.num_prefill_rows + plan.num_tokens - plan.num_decode_tokens,
            totals.num_decode_rows + plan.num_decode_tokens,
            max(totals.peak_used_blocks, plan.num_used_blocks),
            totals.num_evictions,
            totals.num_held_slots + plan.num_used_blocks * block_size,
            totals.num_empty_slots + num_empty,
        )
        self.step_tokens.observe(plan.num_tokens)
        second = int(step.ended_at)
        if not self._seconds or self._seconds[-1].second != second:
            self._seconds.append(_Second(second))
        self._seconds[-1].add(step)
