from __future__ import annotations

from octavo.observe.events import (
    Event,
    EventTee,
    RequestAdmitted,
    RequestFinished,
    StepFailed,
    StepFinished,
    StepPlanned,
)
from octavo.observe.history import StepHistory
from octavo.observe.step_clock import StepClock, TimedStep


def make_plan(step_id: int, *, num_running: int = 1, num_waiting: int = 0) -> StepPlanned:
    return StepPlanned(
        step_id=step_id,
        num_decode_tokens=0,
        num_running=num_running,
        num_waiting=num_waiting,
        num_used_blocks=1,
        num_free_blocks=9,
        num_computed_tokens=(0,),
        num_scheduled_tokens=(3,),
        seats=(0,),
        logit_seats=(0,),
    )


def hear(clock: StepClock, *stamped: tuple[Event, float]) -> list[TimedStep]:
    heard = [clock.hear(event, now) for event, now in stamped]
    return [step for step in heard if step is not None]


ADMITTED = RequestAdmitted(1, "a", 0, 0, 3, 0)
ENDED = RequestFinished("a", 0, "length", None, 3, 1, 0)


def test_phases_lie_between_the_stamps_of_the_events() -> None:
    (step,) = hear(StepClock(), (ADMITTED, 1.0), (make_plan(1), 1.5), (StepFinished(1, 2.0, 1.0, 1.25), 4.0))
    assert step[2:] == (1.0, 1.5, 2.75, 3.5, 4.0)


def test_a_step_that_follows_another_began_where_that_one_ended() -> None:
    clock = StepClock()
    hear(clock, (ADMITTED, 1.0), (make_plan(1), 1.5), (StepFinished(1, 1.0, 1.0, 1.0), 3.0))
    (step,) = hear(clock, (make_plan(2), 3.25), (StepFinished(2, 1.0, 1.0, 1.0), 5.0))
    assert step.began_at == 3.0


def test_a_pause_without_requests_is_nobodys_time() -> None:
    clock = StepClock()
    hear(clock, (ADMITTED, 1.0), (make_plan(1), 1.5), (ENDED, 2.5), (StepFinished(1, 1.0, 1.0, 1.0), 3.0))
    (step,) = hear(clock, (ADMITTED, 100.0), (make_plan(2), 100.5), (StepFinished(2, 1.0, 1.0, 1.0), 102.0))
    assert step.began_at == 100.0


def test_a_failed_step_has_no_times_and_ends_where_it_failed() -> None:
    clock = StepClock()
    hear(clock, (make_plan(1), 1.0), (StepFailed(1, "broken", False, ("a",), None), 2.0))
    (step,) = hear(clock, (make_plan(2), 2.5), (StepFinished(2, 0.5, 0.5, 0.25), 4.0))
    assert (step.plan.step_id, step.began_at) == (2, 2.0)


def test_a_data_plane_that_claims_more_time_than_passed_is_cut_to_it() -> None:
    (step,) = hear(StepClock(), (make_plan(1), 1.0), (StepFinished(1, 9.0, 9.0, 8.0), 2.0))
    assert step[2:] == (1.0, 1.0, 2.0, 2.0, 2.0)


def test_history_forgets_what_is_older_than_a_minute() -> None:
    now = 0.0
    history = StepHistory(16, 1, lambda: now)
    for second in range(100):
        now = second + 0.25
        history.emit(make_plan(second))
        now = second + 0.5
        history.emit(StepFinished(second, 0.125, 0.125, 0.0625))
    kept = history.last_minute()
    assert (len(kept), kept[0].age, kept[-1].age, history.totals().num_steps) == (60, 59, 0, 100)
    now += 30
    assert [history.last_minute()[0].age, history.last_minute()[-1].age] == [59, 30]


def test_history_counts_no_second_twice_and_sums_its_steps() -> None:
    now = 10.0
    history = StepHistory(16, 1, lambda: now)
    for step_id in range(3):
        history.emit(make_plan(step_id))
        now += 0.25
        history.emit(StepFinished(step_id, 0.25, 0.25, 0.125))
    (second,) = history.last_minute()
    assert (second.num_steps, second.num_tokens, second.num_output_tokens, second.num_requests) == (3, 9, 3, 3)
    assert (second.phases.forward, second.phases.sample) == (0.375, 0.375)


class Listener:
    enabled = True
    wants_blocks = False

    def __init__(self, *, wants_steps: bool) -> None:
        self.wants_steps = wants_steps
        self.heard: list[Event] = []

    def emit(self, event: Event) -> None:
        self.heard.append(event)


def test_steps_are_told_to_those_who_want_them_and_all_else_to_everybody() -> None:
    everything, decisions = Listener(wants_steps=True), Listener(wants_steps=False)
    tee = EventTee(everything, decisions)
    events: list[Event] = [ADMITTED, make_plan(1), StepFinished(1, 1.0, 1.0, 1.0), ENDED]
    for event in events:
        tee.emit(event)
    assert everything.heard == events
    assert decisions.heard == [ADMITTED, ENDED]
    assert tee.wants_steps
    assert not EventTee(decisions).wants_steps


def test_totals_add_up_the_steps_that_were_computed_to_their_end() -> None:
    history = StepHistory(16, 1, lambda: 0.0)
    prefill, decode = make_plan(1), make_plan(2)._replace(num_decode_tokens=1, num_scheduled_tokens=(1,))
    failed = make_plan(3)
    for event in (
        prefill,
        StepFinished(1, 2.0, 1.5, 1.0),
        decode,
        StepFinished(2, 0.5, 0.25, 0.25),
        failed,
        StepFailed(3, "broken", False, ("a",), None),
    ):
        history.emit(event)
    totals = history.totals()
    assert (totals.num_steps, totals.step_seconds, totals.native_seconds) == (2, 2.5, 1.75)
    assert (totals.num_prefill_rows, totals.num_decode_rows) == (3, 1)
    assert (sum(history.step_tokens.counts), history.step_tokens.sum) == (2, 4)
