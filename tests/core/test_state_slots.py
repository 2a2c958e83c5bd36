"""Recurrent states: what is restored, where snapshots are left, and that each request's state is its own."""

from __future__ import annotations

from typing import Any

import pytest
from cache_integrity import check_manager
from core_helpers import FULL, STATE, Engine, make_endless, make_manager, make_request, make_specs, tokens_alone

from octavo.cache_spec import StateGroupSpec
from octavo.core.executor import CacheCapacity
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Request
from octavo.core.step import Move, StateSave
from octavo.errors import RequestError, StepCancelledError
from octavo.observe.events import PrefixCacheHit, StateSaved

HYBRID = (FULL, STATE)


def make_engine(num_blocks: Any = (64, 8), windows: tuple = HYBRID, **config: Any) -> Engine:
    values: dict[str, Any] = {"block_size": 16, "max_num_batched_tokens": 64, "max_model_len": 512}
    return Engine(num_blocks=num_blocks, windows=windows, **(values | config))


def saves(engine: Engine) -> list[StateSave]:
    return [save for plan in engine.executor.plans for save in plan.state_saves]


def moves(engine: Engine, kind: str) -> list[Move]:
    return [move for plan in engine.executor.plans for move in plan.moves if move.kind == kind]


def saved(engine: Engine) -> list[tuple[str, int]]:
    return [(event.request_id, event.num_tokens) for event in engine.log.of(StateSaved)]


def num_cached(engine: Engine, request_id: str) -> int:
    last = engine.completions[request_id, 0].last
    assert last is not None
    return last.num_cached_tokens


def run(engine: Engine, *requests: Request) -> None:
    """Run requests to their end, and hold each to the tokens it gives alone."""
    engine.add(*requests)
    engine.finish()
    for request in requests:
        for index in range(request.params.n):
            assert engine.tokens(request.request_id, index) == tokens_alone(request, index)[0]


def test_a_request_begins_with_a_clear_state_in_a_slot_of_its_own() -> None:
    engine = make_engine()
    run(engine, make_request("a", range(20)), make_request("b", range(50, 70), arrival=1))
    assert [(move.group, move.source) for move in moves(engine, "clear_state")] == [(1, -1), (1, -1)]
    assert len({move.target for move in moves(engine, "clear_state")}) == 2


def test_a_prompt_sent_twice_is_restored_at_its_last_border() -> None:
    engine = make_engine()
    run(engine, make_request("first", range(40), ignore_eos=True))
    run(engine, make_request("second", range(40), arrival=1, seed=5))
    assert num_cached(engine, "second") == 32
    assert engine.log.of(PrefixCacheHit) == [PrefixCacheHit("second", 0, 32, 40)]
    assert [(save.position, save.request) for save in saves(engine)] == [(32, 0)]
    assert [(move.kind, move.source) for move in moves(engine, "restore_state")] == [
        ("restore_state", saves(engine)[0].slot)
    ]


@pytest.mark.parametrize("num_slots", [1, 2, 8])
@pytest.mark.parametrize("chunk", [0, 5])
def test_each_turn_of_a_conversation_finds_all_but_the_last_rows_of_the_turn_before(num_slots: int, chunk: int) -> None:
    engine = make_engine((64, num_slots), long_prefill_token_threshold=chunk)
    prompt = list(range(21))
    for turn in range(5):
        request = make_request(f"turn{turn}", prompt, arrival=turn, max_tokens=13 + 3 * turn, ignore_eos=True)
        run(engine, request)
        if turn:
            assert num_cached(engine, f"turn{turn}") >= len(prompt) - 16 - 7
        prompt += [*engine.tokens(f"turn{turn}"), *range(turn, turn + 7)]


def test_the_end_of_a_turn_keeps_the_slot_itself() -> None:
    engine = make_engine()
    run(engine, make_request("a", range(5), max_tokens=30, ignore_eos=True))
    assert saves(engine) == []
    assert saved(engine) == [("a", 32)]
    assert not engine.manager.pool.num_used[1]
    assert engine.manager.pool.held_bytes == 2 * 128 + engine.manager.pool.block_bytes[1]


def test_a_border_that_is_no_block_border_is_not_kept() -> None:
    engine = make_engine(block_size=32)
    run(engine, make_request("a", range(5), max_tokens=50, ignore_eos=True))
    assert saved(engine) == [], "54 tokens: the state stands at 48"
    run(engine, make_request("b", range(5), max_tokens=30, ignore_eos=True, seed=1))
    assert saved(engine) == [("b", 32)]


def test_long_prompts_leave_a_snapshot_every_so_many_tokens() -> None:
    engine = make_engine(snapshot_interval=64, max_num_batched_tokens=100)
    run(engine, make_request("a", range(250), max_tokens=1))
    assert [save.position for save in saves(engine)] == [64, 128, 192, 240]
    run(engine, make_request("b", [*range(150), 7, 7], max_tokens=1, arrival=1))
    assert num_cached(engine, "b") == 128


def test_a_second_prompt_leaves_a_snapshot_where_it_parts_from_the_first() -> None:
    engine = make_engine(snapshot_interval=512, max_num_batched_tokens=50)
    run(engine, make_request("a", [*range(100), *range(60)], max_tokens=1))
    run(engine, make_request("b", [*range(100), *range(90, 130)], max_tokens=1, arrival=1))
    assert num_cached(engine, "b") == 0
    assert [save.position for save in saves(engine)] == [144, 96, 128]
    run(engine, make_request("c", [*range(100), *range(30, 60)], max_tokens=1, arrival=2))
    assert num_cached(engine, "c") == 96


def test_prompts_that_run_together_leave_one_snapshot() -> None:
    engine = make_engine(max_num_seqs=3, max_num_batched_tokens=256)
    run(engine, *(make_request(f"r{i}", range(40), arrival=i, seed=i, max_tokens=1) for i in range(3)))
    assert len(saves(engine)) == 1


def test_a_snapshot_that_exists_is_not_taken_again() -> None:
    engine = make_engine()
    run(engine, make_request("a", range(40), max_tokens=1))
    run(engine, make_request("b", range(40), max_tokens=1, arrival=1, prompt_logprobs=0))
    assert num_cached(engine, "b") == 0, "all its rows are needed"
    assert saved(engine) == [("a", 32)]


def test_salted_prompts_do_not_share_states() -> None:
    engine = make_engine()
    run(engine, make_request("a", range(40), max_tokens=1))
    run(engine, make_request("b", range(40), max_tokens=1, arrival=1, cache_salt="x"))
    assert num_cached(engine, "b") == 0
    assert saved(engine) == [("a", 32), ("b", 32)]


def test_without_prefix_caching_nothing_is_saved() -> None:
    engine = make_engine(enable_prefix_caching=False)
    run(engine, make_request("a", range(40), max_tokens=30))
    run(engine, make_request("b", range(40), max_tokens=30, arrival=1))
    assert (saves(engine), saved(engine), engine.manager.pool.held_bytes) == ([], [], 0)


def test_all_state_groups_must_have_the_snapshot() -> None:
    engine = make_engine((64, 8, 1), windows=(FULL, STATE, STATE))
    run(engine, make_request("a", range(40), max_tokens=1))
    assert {save.group for save in saves(engine)} == {1}, "the only slot of the other group runs"
    probe = make_request("b", range(40))
    assert len(engine.manager.find_cached_prefix(probe)) == 2, "its end was kept, at the same border"
    run(engine, make_request("c", range(100, 140), max_tokens=1))
    assert engine.manager.find_cached_prefix(probe) == []


# Slots run out


def test_an_exhausted_pool_makes_requests_wait_and_takes_no_snapshots() -> None:
    engine = make_engine((64, 2))
    requests = [make_endless(f"r{i}", i, prompt_len=20 + i, max_tokens=20) for i in range(6)]
    engine.add(*requests)
    engine.advance()
    assert len(engine.scheduler.roster.running) == 2
    assert saves(engine) == []
    engine.finish()
    assert all(engine.tokens(r.request_id) == tokens_alone(r)[0] for r in requests)
    assert engine.scheduler.roster.num_preemptions == 0


def test_slots_and_blocks_share_the_ledger() -> None:
    engine = make_engine((12, 6), share=0.5)
    pool = engine.manager.pool
    assert pool.ledger_bytes == 3 * pool.block_bytes[1] + 6 * pool.block_bytes[0]
    requests = [make_endless(f"r{i}", i, prompt_len=15, max_tokens=20) for i in range(5)]
    engine.add(*requests)
    engine.advance()
    assert engine.manager.usage() == pool.used_bytes / pool.ledger_bytes > 0.4
    engine.finish()
    assert all(engine.tokens(r.request_id) == tokens_alone(r)[0] for r in requests)


def test_a_snapshot_is_evicted_for_what_runs() -> None:
    engine = make_engine((64, 2))
    run(engine, make_request("a", range(40), max_tokens=1))
    run(engine, *(make_endless(f"r{i}", i, prompt_len=10) for i in (1, 2)))
    run(engine, make_request("b", range(40), max_tokens=1))
    assert num_cached(engine, "b") == 0


def test_a_snapshot_gives_its_own_memory_if_there_is_no_other_slot() -> None:
    engine = make_engine((64, 1))
    run(engine, make_request("a", range(40), max_tokens=1))
    run(engine, make_request("b", range(45), max_tokens=9, arrival=1))
    assert num_cached(engine, "b") == 32
    (restore,) = moves(engine, "restore_state")
    assert restore.source == restore.target


def test_a_hit_makes_a_snapshot_the_last_to_be_evicted() -> None:
    engine = make_engine((64, 3))
    for arrival, name in enumerate(("old", "new")):
        run(engine, make_endless(name, arrival + 1, prompt_len=33, max_tokens=1))
    run(engine, make_endless("hit", 1, prompt_len=36, max_tokens=1))
    assert num_cached(engine, "hit") == 32
    engine.add(*(make_endless(f"r{i}", i + 5, prompt_len=10) for i in range(2)))
    engine.finish()
    assert len(engine.manager.find_cached_prefix(make_endless("old", 1, prompt_len=33))) == 2
    assert engine.manager.find_cached_prefix(make_endless("new", 2, prompt_len=33)) == []


def test_what_one_slot_and_the_blocks_cannot_hold_is_refused_with_the_numbers() -> None:
    engine = make_engine((3, 4), share=0.4)
    with pytest.raises(RequestError, match=r"7 blocks \+ 1 state slot\).*3 blocks \+ 4 state slots.*48 tokens"):
        engine.add(make_request("a", range(40), max_tokens=60))


# Steps that fail, requests that end early


@pytest.mark.parametrize("stage", ["submit", "body"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), StepCancelledError("cancelled")], ids=["fails", "cancelled"])
def test_a_step_that_fails_publishes_no_snapshot_and_keeps_no_slot(stage: str, error: BaseException) -> None:
    engine = make_engine()
    request = make_request("a", range(100), max_tokens=9, ignore_eos=True)
    engine.add(request)
    engine.advance()

    def fault(_plan: object, at: str) -> None:
        if at == stage:
            raise error

    before = saved(engine)
    engine.executor.fault = fault
    engine.advance()
    assert saves(engine)[-1].position == 96
    assert saved(engine) == before
    assert engine.manager.pool.used_bytes == 0, "its own slot is dirty, and freed"
    engine.executor.fault = lambda *_: None
    if engine.core.has_unfinished():
        engine.finish()
        assert engine.tokens("a") == tokens_alone(request)[0]


def test_a_state_whose_row_failed_is_not_kept() -> None:
    engine = make_engine()
    engine.executor.row_error = lambda _seat, _position: "not finite"
    engine.add(make_request("a", range(40)))
    engine.finish()
    assert saved(engine) == []
    assert engine.manager.find_cached_prefix(make_request("b", range(40))) == []


def test_a_request_aborted_between_chunks_leaves_the_state_it_had() -> None:
    engine = make_engine(long_prefill_token_threshold=24, snapshot_interval=512)
    engine.add(make_request("a", range(100)), make_endless("other", 5, is_streamed=False))
    engine.advance(2)
    engine.core.abort_request("a")
    engine.advance()
    assert saved(engine) == [("a", 48)]
    engine.finish()
    run(engine, make_request("b", range(90), arrival=7))
    assert num_cached(engine, "b") == 48


def test_a_preempted_request_goes_on_from_the_state_it_left() -> None:
    engine = make_engine((9, 4), enable_prefix_caching=True)
    requests = [make_endless(f"r{i}", i, prompt_len=20, max_tokens=60) for i in range(2)]
    run(engine, *requests)
    assert engine.scheduler.roster.num_preemptions >= 1
    assert any(move.kind == "restore_state" for plan in engine.executor.plans for move in plan.moves)


# Completions of one prompt


@pytest.mark.parametrize("prompt_len", [31, 32, 33, 70])
@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize("windows", [HYBRID, (FULL, 20, STATE, STATE)], ids=str)
def test_forked_completions_go_on_from_copies_of_one_state(prompt_len: int, chunk: int, windows: tuple) -> None:
    engine = make_engine(64, windows, long_prefill_token_threshold=chunk)
    run(engine, make_request("a", range(prompt_len), n=4, max_tokens=40, temperature=1.0, ignore_eos=True))
    num_states = windows.count(STATE)
    copies = moves(engine, "copy_state")
    assert len(copies) == 3 * num_states
    assert len({(move.group, move.source) for move in copies}) == num_states, "the last keeps the slot as it is"


def test_the_state_is_copied_before_its_parent_runs_again() -> None:
    engine = make_engine(max_num_batched_tokens=40, max_num_seqs=8)
    engine.add(make_request("a", range(40), n=3, max_tokens=20, temperature=1.0, ignore_eos=True))
    engine.advance()
    assert moves(engine, "copy_state") == []
    engine.advance()
    plan = engine.executor.plans[-1]
    assert [move.kind for move in plan.moves] == ["copy_block", "copy_state"] * 2
    engine.finish()


def test_a_parent_that_ends_leaves_its_state_to_its_children() -> None:
    engine = make_engine()
    request = make_request("a", range(40), n=2, max_tokens=1, temperature=1.0)
    run(engine, request)
    assert moves(engine, "copy_state") == []
    assert saved(engine) == [("a", 32)]


def start_fork(manager: KVCacheManager) -> tuple[Request, Request]:
    """Return a parent and a child that share a prompt of two whole blocks, and a slot."""
    parent = make_request("p", range(32), n=2, temperature=1.0)
    manager.adopt(parent, [])
    manager.allocate(parent, 32)
    assert parent.blocks is not None
    parent.blocks.moves.clear()  # they were sent with the plan
    child = parent.spawn()
    manager.fork(parent, child)
    for request in (parent, child):
        request.num_computed_tokens = 32
        manager.commit(request)
    return parent, child


def test_a_slot_that_another_completion_runs_in_is_not_published() -> None:
    manager = make_manager(8, HYBRID, 16)
    parent, child = start_fork(manager)
    manager.free(parent)
    check_manager(manager, [child])
    assert manager.find_cached_prefix(make_request("again", range(40))) == []
    manager.free(child)
    assert len(manager.find_cached_prefix(make_request("again", range(40)))) == 2


def test_a_slot_that_was_to_be_copied_into_is_not_published() -> None:
    manager = make_manager(8, HYBRID, 16)
    parent, child = start_fork(manager)
    manager.allocate(parent, 1)
    manager.free(parent)
    check_manager(manager, [child])
    assert manager.find_cached_prefix(make_request("again", range(40))) == []


def test_children_are_seated_only_if_there_are_slots_for_all_copies() -> None:
    engine = make_engine((64, 2))
    engine.add(make_request("a", range(40), n=4, max_tokens=20, temperature=1.0, ignore_eos=True))
    engine.advance()
    assert len(engine.scheduler.roster.running) == 2
    engine.finish()
    assert engine.scheduler.roster.num_preemptions == 0


# The manager


def test_a_reset_drops_snapshots() -> None:
    engine = make_engine()
    run(engine, make_request("a", range(40)))
    assert engine.core.reset_prefix_cache()
    assert engine.manager.pool.held_bytes == 0
    assert engine.manager.find_cached_prefix(make_request("b", range(40))) == []


def test_prefix_caching_needs_slots_that_keep_their_border() -> None:
    full = make_specs((FULL,), 16)
    states = StateGroupSpec(1, 1, 1, 16, 16, 4, 48, 16, keeps_border=False)
    capacity = CacheCapacity(100_000, (4, 4))
    with pytest.raises(ValueError, match="keep their border"):
        KVCacheManager([*full, states], capacity, enable_prefix_caching=True, give_back=lambda *_: None)
    KVCacheManager([*full, states], capacity, enable_prefix_caching=False, give_back=lambda *_: None)


@pytest.mark.parametrize("damage", ["leak", "two writers", "published", "lost"])
def test_integrity_notices(damage: str) -> None:
    manager = make_manager(8, HYBRID, 16)
    one, two = make_request("one", range(6)), make_request("two", range(20, 26))
    for request in (one, two):
        manager.adopt(request, manager.find_cached_prefix(request))
        manager.allocate(request, 6)
    check_manager(manager, [one, two])
    assert one.blocks is not None
    assert two.blocks is not None
    (slot,) = one.blocks.slots
    if damage == "leak":
        manager.pool.allocate(1)
    elif damage == "two writers":
        manager.pool.release(two.blocks.slots[0])
        two.blocks.slots[0] = slot
        manager.pool.touch(slot)
    elif damage == "published":
        manager.index.attach(manager.index.child(one.blocks.node, b"x", None), slot)
    else:
        one.blocks.slots.clear()
    with pytest.raises(AssertionError):
        check_manager(manager, [one, two])


def test_slots_that_others_share_are_still_to_be_had() -> None:
    manager = make_manager((8, 2), HYBRID, 16)
    parent, child = start_fork(manager)
    assert manager.blocks_to_go_on(2) == [2, 1]
    assert manager.num_tokens_that_fit(child, 40) == 40
    taken = manager.pool.allocate(1)
    assert manager.num_tokens_that_fit(child, 40) == 0
    manager.pool.release(taken)
    manager.free(parent)
    assert manager.num_tokens_that_fit(child, 40) == 40
