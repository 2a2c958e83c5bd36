from __future__ import annotations

import pytest
from core_helpers import Engine, make_endless, make_request, tokens_alone

from octavo.core.step import SchedulerOutput
from octavo.errors import EngineDeadError, RequestError, StepCancelledError
from octavo.observe.events import RequestFinished, RequestPreempted, StepFailed, StepPlanned


def fail_for(engine: Engine, *request_ids: str) -> None:
    """Make each step fail in which one of these is a member."""

    def fault(plan: SchedulerOutput, stage: str) -> None:
        if stage == "body":
            for request_id, _ in engine.executor.scheduled_tokens(plan):
                if request_id in request_ids:
                    raise RuntimeError(f"{request_id} breaks it")

    engine.executor.fault = fault


def fail_once(engine: Engine, error: BaseException, stage: str = "body") -> None:
    def fault(plan: SchedulerOutput, at: str) -> None:
        del plan
        if at == stage:
            engine.executor.fault = lambda *_: None
            raise error

    engine.executor.fault = fault


def test_an_engine_without_work_does_nothing() -> None:
    engine = Engine()
    assert not engine.core.has_unfinished()
    assert engine.core.advance() == []
    assert engine.executor.plans == []


def test_a_request_that_never_fits_is_refused_where_it_is_added() -> None:
    engine = Engine(num_blocks=4)
    with pytest.raises(RequestError, match="at most 12"):
        engine.add(make_endless("a", 0, max_tokens=13))
    assert not engine.core.has_unfinished()


def test_an_id_in_use_is_a_fault_until_its_request_has_ended() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0))
    with pytest.raises(AssertionError, match="twice"):
        engine.add(make_endless("a", 1))
    engine.advance()
    with pytest.raises(AssertionError, match="twice"):
        engine.add(make_endless("a", 2))
    engine.finish()
    engine.completions.clear()
    engine.add(make_endless("a", 3))
    engine.finish()


def test_an_abort_ends_waiting_running_and_unborn_completions() -> None:
    engine = Engine(max_num_seqs=2)
    engine.add(make_endless("a", 0, n=5, temperature=1.0), make_endless("b", 1))
    engine.advance(2)
    engine.core.abort_request("a")
    engine.core.abort_request("nobody")
    engine.finish()
    reasons = {key: completion.finish_reason for key, completion in engine.completions.items()}
    assert reasons == {**{("a", index): "abort" for index in range(5)}, ("b", 0): "length"}


def test_a_request_aborted_before_its_first_step_never_runs() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0))
    engine.core.abort_request("a")
    engine.finish()
    assert engine.completions["a", 0].finish_reason == "abort"
    assert engine.executor.plans == []


@pytest.mark.parametrize("guilty", [("r0",), ("r3",), ("r1", "r2"), ("r0", "r1", "r2", "r3")], ids=str)
def test_only_the_request_that_breaks_steps_ends_with_an_error(guilty: tuple[str, ...]) -> None:
    engine = Engine(num_blocks=64)
    requests = [make_endless(f"r{i}", i, max_tokens=6) for i in range(4)]
    fail_for(engine, *guilty)
    engine.add(*requests)
    engine.finish()
    for request in requests:
        completion = engine.completions[request.request_id, 0]
        if request.request_id in guilty:
            assert completion.finish_reason == "error"
            assert completion.last is not None
            assert f"{request.request_id} breaks it" in (completion.last.error or "")
        else:
            assert completion.token_ids == tokens_alone(request)[0]


def test_a_request_that_breaks_a_late_step_is_found() -> None:
    engine = Engine(num_blocks=64)
    requests = [make_endless(f"r{i}", i, max_tokens=10) for i in range(4)]

    def fault(plan: SchedulerOutput, stage: str) -> None:
        if stage == "body":
            members = zip(plan.seats, plan.num_computed_tokens + plan.num_scheduled_tokens, strict=True)
            if any(engine.executor.seats[seat].request_id == "r2" and end > 9 for seat, end in members):
                raise RuntimeError("token 9")

    engine.executor.fault = fault
    engine.add(*requests)
    engine.finish()
    assert engine.completions["r2", 0].finish_reason == "error"
    assert engine.tokens("r2") == tokens_alone(requests[2])[0][:6], "what had been given stays"
    assert [engine.completions[f"r{i}", 0].finish_reason for i in (0, 1, 3)] == ["length"] * 3


def test_all_completions_of_a_guilty_request_end_at_once() -> None:
    engine = Engine()
    fail_for(engine, "a")
    engine.add(make_endless("a", 0, n=4096, temperature=1.0), make_endless("b", 1))
    engine.finish()
    reasons = [engine.completions["a", index].finish_reason for index in range(4096)]
    assert set(reasons) == {"error"}
    assert engine.completions["b", 0].finish_reason == "length"
    assert len(engine.log.of(StepFailed)) <= 3


def test_a_failure_that_does_not_return_costs_nobody() -> None:
    engine = Engine(num_blocks=64)
    requests = [make_endless(f"r{i}", i, max_tokens=6) for i in range(4)]
    engine.add(*requests)
    engine.advance(3)
    fail_once(engine, RuntimeError("cosmic ray"))
    engine.finish()
    assert [engine.tokens(request.request_id) for request in requests] == [tokens_alone(r)[0] for r in requests]


@pytest.mark.parametrize("stage", ["submit", "body"])
def test_a_cancelled_step_is_computed_again(stage: str) -> None:
    engine = Engine()
    request = make_endless("a", 0)
    engine.add(request)
    engine.advance(2)
    fail_once(engine, StepCancelledError("stop"), stage)
    engine.finish()
    assert engine.tokens("a") == tokens_alone(request)[0]
    assert [event.reason for event in engine.log.of(RequestPreempted)] == ["step_cancelled"]
    assert engine.completions["a", 0].last.num_preemptions == 1  # type: ignore[union-attr]
    assert engine.scheduler.roster.num_preemptions == 0, "nobody needed its blocks"


def test_an_interrupt_leaves_a_usable_engine() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0), make_endless("b", 1))
    engine.advance(2)
    fail_once(engine, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.core.advance()
    engine.check()
    engine.core.abort_request("a")
    engine.finish()
    assert engine.completions["b", 0].finish_reason == "length"


def test_outputs_of_an_abort_survive_an_interrupt() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0), make_endless("b", 1))
    engine.advance()
    engine.core.abort_request("a")
    fail_once(engine, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.core.advance()
    engine.finish()
    assert engine.completions["a", 0].finish_reason == "abort"


def test_a_fault_of_the_scheduler_itself_is_raised() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0))
    engine.manager.find_cached_prefix = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        engine.core.advance()


def test_a_stop_checker_that_raises_ends_its_request_alone() -> None:
    class Broken:
        def append(self, token_id: int) -> str | None:
            raise ValueError(f"cannot decode {token_id}")

    engine = Engine()
    good = make_endless("good", 1)
    engine.add(make_endless("bad", 0, make_stop_checker=Broken), good)
    engine.finish()
    bad = engine.completions["bad", 0]
    assert bad.finish_reason == "error"
    assert "cannot decode" in str(bad.last.error)  # type: ignore[union-attr]
    assert engine.tokens("good") == tokens_alone(good)[0]


def test_a_sampled_id_out_of_range_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_executor.next_token", lambda token_ids, seed: 2**40 if seed else token_ids[0])
    engine = Engine()
    engine.add(make_request("bad", seed=1), make_request("good", [3], arrival=1))
    engine.finish()
    assert engine.completions["bad", 0].finish_reason == "error"
    assert engine.completions["good", 0].finish_reason == "length"


def test_masks_are_asked_for_while_each_step_is_open() -> None:
    engine = Engine()
    asked: list[int] = []
    engine.core._masks = lambda: asked.append(len(engine.core.scheduler.open_constraints))
    engine.add(make_endless("a", 0, max_tokens=2))
    engine.finish()
    assert asked == [1, 1]


def test_the_prefix_cache_is_reset_only_between_requests() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0, prompt_len=9))
    engine.advance()
    assert not engine.core.reset_prefix_cache()
    engine.finish()
    assert engine.core.reset_prefix_cache()
    engine.add(make_request("again", range(9)))
    engine.finish()
    assert engine.completions["again", 0].last.num_cached_tokens == 0  # type: ignore[union-attr]


def test_the_parts_count_what_happened() -> None:
    engine = Engine(max_num_seqs=1)
    engine.add(make_request("a", range(9), max_tokens=3, ignore_eos=True), make_request("b", range(9), arrival=1))
    engine.advance()
    scheduler, manager = engine.scheduler, engine.manager
    assert (len(scheduler.roster.running), len(scheduler.roster.waiting), scheduler.num_generated_tokens) == (1, 1, 1)
    assert (manager.usage(), engine.log.of(StepPlanned)[-1].num_used_blocks) == (3 / 16, 3)
    engine.finish()
    assert (len(scheduler.roster.running), len(scheduler.roster.waiting), manager.usage()) == (0, 0, 0.0)
    assert (manager.num_queried_tokens, manager.num_hit_tokens) == (18, 8)


def test_every_end_is_told() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0, n=2, temperature=1.0))
    engine.finish()
    ends = engine.log.of(RequestFinished)
    assert [(end.completion, end.finish_reason, end.num_output_tokens) for end in ends] == [
        (0, "length", 12),
        (1, "length", 12),
    ]


def test_a_closed_engine_takes_nothing() -> None:
    engine = Engine()
    engine.core.cancel()
    assert engine.executor.is_cancelled
    engine.core.shutdown()
    engine.core.shutdown()
    assert engine.executor.is_shut_down
    with pytest.raises(EngineDeadError):
        engine.add(make_endless("a", 0))
    with pytest.raises(EngineDeadError):
        engine.core.advance()


def test_an_engine_that_nobody_listens_to_makes_no_events() -> None:
    engine = Engine(num_blocks=5)
    engine.log.enabled = engine.log.wants_steps = engine.log.wants_blocks = False
    engine.add(*(make_endless(f"r{i}", i, max_tokens=9, n=2, temperature=1.0) for i in range(3)))
    with pytest.raises(RequestError):
        engine.add(make_endless("huge", 9, prompt_len=60))
    fail_once(engine, RuntimeError("once"))
    engine.finish()
    assert engine.log.events == []
