from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from core_helpers import FULL, STATE, Engine, make_endless, make_request, tokens_alone

from octavo.core.step import SchedulerOutput
from octavo.errors import StepCancelledError
from octavo.observe.events import (
    EngineStalled,
    RequestAdmitted,
    RequestDeferred,
    RequestForked,
    RequestPreempted,
    StepPlanned,
)


def chunks(engine: Engine) -> list[list[int]]:
    """Tokens of each member of each plan."""
    return [plan.num_scheduled_tokens.tolist() for plan in engine.executor.plans]


def running(engine: Engine) -> list[str]:
    return [request.request_id for request in engine.scheduler.roster.running]


# Budget and chunks


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0, prompt_len=35, max_tokens=2))
    engine.finish()
    assert chunks(engine) == [[16], [16], [3], [1]]


def test_decode_rows_come_first_and_prefill_gets_the_rest() -> None:
    engine = Engine()
    engine.add(make_endless("a", 1), make_endless("long", 0, prompt_len=40))
    engine.advance(3)
    plan = engine.executor.plans[-1]
    assert chunks(engine)[-2:] == [[16], [8, 4]]
    engine.advance()
    assert chunks(engine)[-1] == [1, 1]
    assert plan.num_scheduled_tokens.sum() <= 16


def test_a_long_prefill_is_limited_while_another_request_decodes() -> None:
    engine = Engine(long_prefill_token_threshold=5)
    engine.add(make_endless("a", 0, is_streamed=False))
    engine.advance()
    engine.add(make_endless("long", 1, prompt_len=12))
    engine.advance(3)
    assert chunks(engine) == [[4], [1, 5], [1, 5], [1, 2]]


def test_a_long_prefill_is_limited_while_another_request_waits() -> None:
    engine = Engine(long_prefill_token_threshold=5, max_num_seqs=1)
    engine.add(make_endless("long", 0, prompt_len=12), make_endless("a", 1))
    engine.advance()
    assert chunks(engine) == [[5]]


def test_a_long_prefill_is_limited_while_another_request_prefills() -> None:
    engine = Engine(long_prefill_token_threshold=5)
    engine.add(make_endless("long", 0, prompt_len=30), make_endless("next", 1, prompt_len=14))
    engine.advance(3)
    assert chunks(engine) == [[5, 5], [5, 5], [5, 4]]


def test_a_long_prefill_alone_is_not_limited() -> None:
    engine = Engine(long_prefill_token_threshold=5)
    engine.add(make_endless("long", 0, prompt_len=12))
    engine.advance()
    assert chunks(engine) == [[12]]


def test_without_chunks_a_prompt_waits_for_a_step_with_room() -> None:
    engine = Engine(enable_chunked_prefill=False, num_blocks=64)
    engine.add(make_endless("a", 0, prompt_len=10), make_endless("b", 1, prompt_len=10, max_tokens=3))
    engine.finish()
    assert chunks(engine)[:3] == [[10], [1, 10], [1, 1]]
    assert [event.reason for event in engine.log.of(RequestDeferred)] == ["token_budget"]


# Admission


def test_requests_are_admitted_in_order_even_if_a_later_one_would_fit() -> None:
    engine = Engine(num_blocks=6)
    engine.add(
        make_endless("a", 0, prompt_len=8), make_endless("big", 1, prompt_len=16, max_tokens=4), make_endless("c", 2)
    )
    engine.advance(3)
    assert running(engine) == ["a"]
    deferred = engine.log.of(RequestDeferred)
    assert [(event.request_id, event.reason) for event in deferred] == [("big", "blocks")]


def test_admission_leaves_a_block_for_each_running_request() -> None:
    engine = Engine(num_blocks=4)
    engine.add(make_endless("a", 0, max_tokens=8), make_endless("b", 1, prompt_len=8, max_tokens=4))
    engine.advance()
    assert running(engine) == ["a", "b"], "1 + 2 blocks, and 1 for a"
    engine = Engine(num_blocks=3)
    engine.add(make_endless("a", 0, max_tokens=8), make_endless("b", 1, prompt_len=8, max_tokens=4))
    engine.advance()
    assert running(engine) == ["a"]


def test_admission_leaves_the_blocks_that_a_running_prefill_lacks() -> None:
    engine = Engine(num_blocks=7, long_prefill_token_threshold=4)
    engine.add(make_endless("long", 0, prompt_len=24, max_tokens=4), make_endless("b", 1, prompt_len=8))
    engine.advance()
    assert running(engine) == ["long"]


def test_admission_never_preempts() -> None:
    engine = Engine(num_blocks=4, policy="priority")
    engine.add(make_endless("a", 0, prompt_len=12, max_tokens=4))
    engine.advance()
    engine.add(make_endless("urgent", 1, prompt_len=8, max_tokens=4, priority=-1))
    engine.advance(2)
    assert running(engine) == ["a"]
    assert engine.log.of(RequestPreempted) == []
    engine.finish()


def test_hits_on_the_list_of_free_blocks_are_not_counted_twice() -> None:
    engine = Engine(num_blocks=5)
    first = make_endless("first", 0, prompt_len=16, max_tokens=1)
    engine.add(first)
    engine.finish()
    engine.add(make_endless("a", 1, max_tokens=4), make_request("again", range(16), arrival=2, max_tokens=4))
    engine.advance()
    assert running(engine) == ["a"], "the prefix takes 3 of the 4 free blocks, its end 1, and 1 is left for a"
    engine.finish()
    assert engine.tokens("again") == tokens_alone(make_request("again", range(16), max_tokens=4))[0]


def test_no_request_is_admitted_beyond_the_seats() -> None:
    engine = Engine(max_num_seqs=2)
    engine.add(*(make_endless(f"r{i}", i, max_tokens=3) for i in range(3)))
    engine.advance()
    assert running(engine) == ["r0", "r1"]
    assert [event.reason for event in engine.log.of(RequestDeferred)] == ["seats"]
    engine.finish()
    assert [event.seat for event in engine.log.of(RequestAdmitted)] == [0, 1, engine.log.of(RequestAdmitted)[-1].seat]


def test_a_deferral_is_told_once_per_reason() -> None:
    engine = Engine(max_num_seqs=1)
    engine.add(make_endless("a", 0), make_endless("b", 1))
    engine.advance(8)
    assert len(engine.log.of(RequestDeferred)) == 1


def test_under_the_priority_policy_the_more_urgent_is_admitted_first() -> None:
    engine = Engine(max_num_seqs=1, policy="priority")
    engine.add(make_endless("late", 0, priority=1), make_endless("urgent", 1, priority=-1))
    engine.advance()
    assert running(engine) == ["urgent"]


# Preemption


def test_the_last_in_rank_gives_way_and_comes_back() -> None:
    engine = Engine(num_blocks=5)
    requests = [make_endless(f"r{i}", i, max_tokens=9) for i in range(2)]
    engine.add(*requests)
    engine.finish()
    preempted = engine.log.of(RequestPreempted)
    assert {(event.request_id, event.reason) for event in preempted} == {("r1", "blocks")}
    assert engine.completions["r1", 0].last.num_preemptions == len(preempted) >= 1  # type: ignore[union-attr]
    for request in requests:
        assert engine.tokens(request.request_id) == tokens_alone(request)[0]


def test_the_last_in_rank_gives_way_for_its_own_need() -> None:
    engine = Engine(num_blocks=7, enable_prefix_caching=False)
    engine.add(make_endless("a", 0, prompt_len=9, max_tokens=15), make_endless("b", 1, prompt_len=7, max_tokens=12))
    engine.finish()
    assert engine.log.of(RequestPreempted)[0].by_request_id == "b"


def test_a_chunk_shrinks_to_the_free_blocks_before_anyone_is_preempted() -> None:
    engine = Engine(num_blocks=10)
    engine.add(make_endless("a", 0), make_endless("long", 1, prompt_len=30, max_tokens=2))
    engine.advance()
    assert chunks(engine) == [[4, 12]]
    taken = [engine.manager.pool.allocate(0) for _ in range(engine.manager.pool.num_free_blocks() - 3)]
    plan = engine.scheduler.schedule()
    assert plan.num_scheduled_tokens.tolist() == [1, 8], "1 block for a, 2 for the prompt, though 15 tokens are left"
    assert engine.log.of(RequestPreempted) == []
    engine.scheduler.cancel_step()
    for block in taken:
        engine.manager.pool.release(block)
    engine.finish()


def test_a_victim_that_was_planned_already_leaves_the_plan_and_its_tokens_to_others() -> None:
    engine = Engine(block_size=8, long_prefill_token_threshold=1, max_num_batched_tokens=3, policy="priority")
    engine.add(make_endless("victim", 0, prompt_len=1, max_tokens=40, priority=1, is_streamed=False))
    engine.advance()
    engine.add(make_endless("first", 1, prompt_len=30))
    engine.advance()
    engine.add(make_endless("second", 2, prompt_len=30))
    engine.advance(7)
    assert [(r.request_id, r.num_computed_tokens) for r in engine.scheduler.roster.running] == [
        ("first", 8),
        ("second", 7),
        ("victim", 9),
    ]
    taken = [engine.manager.pool.allocate(0) for _ in range(engine.manager.pool.num_free_blocks())]
    engine.scheduler._planner.config = replace(engine.config, max_num_batched_tokens=2)
    plan = engine.scheduler.schedule()
    assert plan.seats.tolist() == [request.seat for request in engine.scheduler.roster.running]
    assert running(engine) == ["first", "second"]
    assert plan.num_scheduled_tokens.tolist() == [1, 1]
    engine.scheduler.cancel_step()
    for block in taken:
        engine.manager.pool.release(block)
    engine.finish()


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    engine = Engine(num_blocks=5, enable_prefix_caching=False)
    engine.add(*(make_endless(f"r{i}", i, max_tokens=9) for i in range(3)))
    engine.finish()
    preempting = {event.step_id for event in engine.log.of(RequestPreempted)}
    assert preempting
    assert not preempting & {event.step_id for event in engine.log.of(RequestAdmitted)}


def test_a_victim_that_was_planned_already_is_not_counted_as_a_decode_row() -> None:
    engine = Engine(num_blocks=5)
    engine.add(*(make_endless(f"r{i}", i, max_tokens=9) for i in range(2)))
    engine.finish()
    preempting = {event.step_id for event in engine.log.of(RequestPreempted)}
    planned = [event for event in engine.log.of(StepPlanned) if event.step_id in preempting]
    assert planned
    assert [event.num_decode_tokens for event in planned] == [1] * len(planned)


# n > 1


def test_children_share_the_last_prompt_row() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0, prompt_len=6, n=3, temperature=1.0, seed=5))
    engine.advance()
    plan = engine.executor.plans[0]
    assert plan.logit_rows.tolist() == [5, 5, 5]
    assert plan.logit_positions.tolist() == [6, 6, 6]
    assert len(set(plan.logit_seats.tolist())) == 3
    assert [seat.seed for seat in plan.assigned] == [5, 6, 7]
    assert plan.seats.tolist() == [plan.logit_seats[0]]
    assert [event.completion for event in engine.log.of(RequestForked)] == [1, 2]


def test_children_without_a_seat_wait_behind_one_heir() -> None:
    engine = Engine(max_num_seqs=3, num_blocks=64)
    engine.add(make_endless("a", 0, prompt_len=6, n=4096, temperature=1.0, max_tokens=2))
    engine.advance()
    roster = engine.scheduler.roster
    assert len(roster.running) == 3
    assert [(request.index, request.num_unborn) for request in roster.waiting] == [(3, 4092)]
    engine.core.abort_request("a")
    engine.finish()
    assert len(engine.completions) == 4096
    assert {completion.finish_reason for completion in engine.completions.values()} == {"abort"}


def test_no_more_children_are_seated_than_there_are_blocks_for_their_tails() -> None:
    engine = Engine(num_blocks=4)
    engine.add(make_endless("a", 0, prompt_len=6, n=4, temperature=1.0, max_tokens=4))
    engine.advance()
    assert [event.completion for event in engine.log.of(RequestForked)] == [1]
    engine.finish()
    assert len(engine.completions) == 4


def test_late_children_fork_in_their_turn() -> None:
    engine = Engine(max_num_seqs=3, num_blocks=64)
    request = make_endless("a", 0, prompt_len=6, n=8, temperature=1.0, max_tokens=3)
    engine.add(request)
    engine.finish()
    assert [engine.tokens("a", i) for i in range(8)] == [tokens_alone(request, i)[0] for i in range(8)]
    assert {event.parent_completion for event in engine.log.of(RequestForked)} == {0, 3, 6}


def test_children_do_not_overtake_who_ranks_before_them() -> None:
    engine = Engine(max_num_seqs=2, num_blocks=64, policy="priority", max_num_batched_tokens=4)
    engine.add(make_endless("a", 0, prompt_len=8, n=2, temperature=1.0, priority=1))
    engine.advance()
    engine.add(make_endless("urgent", 1, prompt_len=8))
    engine.advance()
    assert engine.log.of(RequestForked) == []


def test_children_of_a_cancelled_step_are_unborn_again() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0, prompt_len=6, n=3, temperature=1.0))
    engine.scheduler.schedule()
    assert len(engine.scheduler.roster.running) == 3
    engine.scheduler.cancel_step()
    (waiting,) = engine.scheduler.roster.waiting
    assert (waiting.index, waiting.num_unborn) == (0, 2)
    engine.finish()
    assert len(engine.completions) == 3


# Plans and the alarm


def test_a_plan_carries_only_what_changed() -> None:
    engine = Engine(windows=(FULL, 5))
    engine.add(make_endless("a", 0, prompt_len=7))
    engine.advance(4)
    first, second, third, fourth = engine.executor.plans
    assert (len(first.assigned), first.appended, first.replaced) == (1, [], [])
    assert [len(ids) for ids in first.assigned[0].block_ids] == [2, 2]
    assert (second.assigned, second.appended, second.replaced) == ([], [], [])
    assert [(more.group, len(more.block_ids)) for more in third.appended] == [(0, 1), (1, 1)]
    assert [(change.group, change.index, change.block_id) for change in third.replaced] == [(1, 0, -1)]
    assert (fourth.assigned, fourth.appended, fourth.replaced) == ([], [], [])


def test_plan_arrays_are_int32() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0))
    engine.advance()
    plan = engine.executor.plans[0]
    names = ("seats", "num_computed_tokens", "num_scheduled_tokens", "logit_rows", "logit_seats", "logit_positions")
    assert {getattr(plan, name).dtype for name in names} == {np.dtype(np.int32)}


def test_a_seat_is_released_before_it_is_given_away() -> None:
    engine = Engine(max_num_seqs=1)
    engine.add(make_endless("a", 0, max_tokens=1), make_endless("b", 1, max_tokens=1))
    engine.finish()
    assert [plan.released_seats for plan in engine.executor.plans] == [[], [0]]


def test_a_seat_is_given_away_again_though_the_plan_that_released_it_was_never_read() -> None:
    engine = Engine(max_num_seqs=1)
    engine.add(make_endless("a", 0, max_tokens=1), make_endless("b", 1, max_tokens=5))
    engine.advance()

    def fail(plan: SchedulerOutput, stage: str) -> None:
        if stage == "submit" and plan.released_seats == [0] and plan.step_id == 2:
            raise StepCancelledError("not read")

    engine.executor.fault = fail
    engine.finish()
    assert engine.tokens("b") == tokens_alone(make_endless("b", 1, max_tokens=5))[0]


def test_steady_decoding_sends_the_same_arrays_and_new_positions() -> None:
    engine = Engine(num_blocks=64)
    engine.add(make_endless("a", 0, max_tokens=9), make_endless("b", 1, max_tokens=9))
    engine.advance(4)
    before, now = engine.executor.plans[-2:]
    for name in ("seats", "num_scheduled_tokens", "logit_rows", "logit_seats"):
        assert getattr(now, name) is getattr(before, name), name
    assert (now.num_computed_tokens == before.num_computed_tokens + 1).all()
    assert (now.logit_positions == before.logit_positions + 1).all()


def test_a_request_that_is_not_streamed_tells_its_first_token_and_then_the_rest_at_its_end() -> None:
    engine = Engine(num_blocks=64)
    engine.add(make_endless("quiet", 0, max_tokens=6, is_streamed=False), make_endless("loud", 1, max_tokens=6))
    told: dict[str, list[int]] = {"quiet": [], "loud": []}
    while engine.core.has_unfinished():
        for output in engine.core.advance():
            told[output.request_id].append(len(output.new_token_ids))
            engine._take(output)
    assert told == {"quiet": [1, 5], "loud": [1] * 6}
    expected = [tokens_alone(make_endless(name, i, max_tokens=6))[0] for i, name in enumerate(("quiet", "loud"))]
    assert [engine.tokens("quiet"), engine.tokens("loud")] == expected


@pytest.mark.parametrize("ending", ["abort", "error"])
def test_what_was_not_told_yet_comes_with_an_early_end(ending: str) -> None:
    engine = Engine()
    request = make_endless("a", 0, is_streamed=False)
    engine.add(request)
    engine.advance(4)
    if ending == "abort":
        engine.core.abort_request("a")
    else:
        engine.executor.row_error = lambda *_: "not finite"
    engine.finish()
    assert engine.completions["a", 0].finish_reason == ending
    assert engine.tokens("a") == tokens_alone(request)[0][:4]


def test_each_step_is_told_in_numbers() -> None:
    engine = Engine()
    engine.add(make_endless("a", 0, prompt_len=6, n=2, temperature=1.0), make_endless("b", 1))
    engine.advance()
    assert engine.log.of(StepPlanned) == [
        StepPlanned(
            step_id=1,
            num_decode_tokens=0,
            num_running=3,
            num_waiting=0,
            num_used_blocks=3,
            num_free_blocks=13,
            num_computed_tokens=(0, 0),
            num_scheduled_tokens=(6, 4),
            seats=(0, 1),
            logit_seats=(0, 2, 1),
        )
    ]


def test_slots_and_snapshots_of_states_do_not_count_as_used_blocks() -> None:
    engine = Engine(windows=(FULL, STATE), block_size=16, max_num_batched_tokens=64)
    engine.add(make_endless("a", 0, prompt_len=40, max_tokens=2))
    engine.advance()
    assert len(engine.executor.plans[-1].state_saves) > 0
    assert engine.log.of(StepPlanned)[0].num_used_blocks == 3


def test_a_stalled_engine_ends_the_first_request_and_says_why() -> None:
    engine = Engine(num_blocks=4)
    engine.add(make_endless("a", 0, prompt_len=12, max_tokens=4), make_endless("b", 1))
    leaked = [engine.manager.pool.allocate(0) for _ in range(4)]
    outputs = engine.core.advance()
    assert [(output.request_id, output.finish_reason) for output in outputs] == [("a", "error")]
    assert "stalled" in (outputs[0].error or "")
    assert engine.log.of(EngineStalled)[0].waiting[0][0] == "a"
    for block in leaked:
        engine.manager.pool.release(block)
    engine.finish()
    assert len(engine.tokens("b")) == 12
