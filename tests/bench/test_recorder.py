from __future__ import annotations

from octavo.bench.recorder import StepRecorder
from octavo.observe.events import StepFailed, StepFinished, StepPlanned


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_plan(step_id: int, computed: tuple[int, ...] = (5,), scheduled: tuple[int, ...] = (1,)) -> StepPlanned:
    return StepPlanned(
        step_id=step_id,
        num_decode_tokens=scheduled.count(1),
        num_running=len(computed),
        num_waiting=0,
        num_used_blocks=1,
        num_free_blocks=1,
        num_computed_tokens=computed,
        num_scheduled_tokens=scheduled,
        seats=tuple(range(len(computed))),
        logit_seats=tuple(range(len(computed))),
    )


def run_step(recorder: StepRecorder, clock: Clock, step_id: int, *, before: float = 0.0, during: float = 1.0) -> None:
    """A step that is planned `before` seconds from now and takes `during` seconds."""
    clock.now += before
    recorder.emit(make_plan(step_id))
    clock.now += during
    recorder.emit(StepFinished(step_id, during, during / 2))


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    clock = Clock()
    recorder = StepRecorder(clock)
    run_step(recorder, clock, 1)
    run_step(recorder, clock, 2, before=0.5, during=2.0)
    assert [(step.loop_seconds, step.native_seconds, step.follows) for step in recorder.take()] == [
        (1.0, 0.5, False),
        (2.5, 1.0, True),
    ]


def test_after_taking_the_next_step_is_a_first_one() -> None:
    clock = Clock()
    recorder = StepRecorder(clock)
    run_step(recorder, clock, 1)
    recorder.take()
    run_step(recorder, clock, 2, before=60.0)
    (step,) = recorder.take()
    assert (step.loop_seconds, step.follows) == (1.0, False)


def test_the_plan_says_what_a_step_held() -> None:
    clock = Clock()
    recorder = StepRecorder(clock)
    recorder.emit(make_plan(7, (5, 0), (1, 20)))
    recorder.emit(StepFinished(7, 1.0, 1.0))
    (step,) = recorder.take()
    assert (step.num_tokens, step.num_decode_tokens) == (21, 1)
    assert (step.num_computed_tokens, step.num_scheduled_tokens) == ((5, 0), (1, 20))
    assert not step.is_prefill
    assert not step.is_decode


def test_a_step_that_failed_is_no_step() -> None:
    clock = Clock()
    recorder = StepRecorder(clock)
    recorder.emit(make_plan(1))
    recorder.emit(StepFailed(1, "broken", False, ("a",), None))
    run_step(recorder, clock, 2)
    assert len(recorder.take()) == 1
