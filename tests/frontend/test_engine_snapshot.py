from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from face_fakes import FakeExecutor, make_engine, make_parts

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.core.request import Request
from octavo.frontend.build import build
from octavo.frontend.engine_snapshot import EngineState
from octavo.frontend.llm_engine import EngineParts
from octavo.observe.events import Event, StepFinished
from octavo.observe.snapshot import EngineSnapshot

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"


def next_token(ids: list[int], prompt_len: int) -> int:
    """A token that depends on how many there are, so that blocks of different requests differ."""
    del prompt_len
    return 100 + len(ids) % 50


def make_core(num_blocks: int = 64, **options: int) -> EngineParts:
    return make_parts(FakeExecutor(next_token, num_blocks), **options)  # type: ignore[arg-type]


def add(parts: EngineParts, request_id: str, prompt: list[int], *, n: int = 1, max_tokens: int = 40) -> None:
    params = SamplingParams(n=n, temperature=1.0, max_tokens=max_tokens, ignore_eos=True)
    arrival = sum(map(len, (parts.core.scheduler.roster.running, parts.core.scheduler.roster.waiting)))
    parts.core.add_request(
        Request(f"{request_id}#{arrival}", prompt, params, arrival=arrival, seed=0, max_tokens=max_tokens)
    )


def advance(parts: EngineParts, num_steps: int = 1) -> None:
    for _ in range(num_steps):
        parts.core.advance()


def snapshot_of(parts: EngineParts) -> EngineSnapshot:
    observer = parts.make_observer()
    return observer.describe(observer.copy_state())


def test_a_running_request_shows_its_progress_and_its_blocks() -> None:
    parts = make_core()
    add(parts, "a", list(range(20)))
    advance(parts, 3)
    (request,) = snapshot_of(parts).running
    assert (request.request_id, request.seat, request.waits_for) == ("a", 0, None)
    assert (request.num_prompt_tokens, request.num_computed_tokens, request.num_output_tokens) == (20, 22, 3)
    assert request.block_ids == ((0, 1),)


def test_blocks_tell_their_owners_and_how_full_they_are() -> None:
    parts = make_core()
    add(parts, "a", list(range(20)))
    advance(parts)
    (group,) = snapshot_of(parts).cache_groups
    assert [(block.block_id, block.ref_cnt, block.owners, block.num_filled) for block in group.used] == [
        (0, 1, (0,), 16),
        (1, 1, (0,), 4),
    ]


def test_a_prefix_that_two_requests_share_is_one_block_with_two_owners() -> None:
    parts = make_core()
    add(parts, "a", list(range(20)))
    advance(parts)
    add(parts, "b", list(range(18)))
    advance(parts)
    taken = snapshot_of(parts)
    shared = [block for block in taken.cache_groups[0].used if block.ref_cnt > 1]
    assert [(block.block_id, block.owners) for block in shared] == [(0, (0, 1))]
    assert (taken.kv_cache.num_shared_blocks, taken.kv_cache.num_saved_tokens) == (1, 16)


def test_reference_counts_are_the_owners_of_each_block() -> None:
    parts = make_core()
    add(parts, "a", list(range(40)), n=3)
    add(parts, "b", list(range(36)))
    for _ in range(8):
        advance(parts)
        (group,) = snapshot_of(parts).cache_groups
        assert [block.ref_cnt for block in group.used] == [len(block.owners) for block in group.used]


def test_a_block_is_used_or_cached_or_free() -> None:
    parts = make_core()
    add(parts, "a", list(range(40)), max_tokens=2)
    add(parts, "b", list(range(50, 90)))
    advance(parts, 4)
    (group,) = snapshot_of(parts).cache_groups
    used = {block.block_id for block in group.used}
    assert len(group.cached) == 2, "the full blocks of the request that ended"
    assert used.isdisjoint(group.cached)


def test_waiting_requests_say_why_in_the_order_of_the_queue() -> None:
    parts = make_core(max_num_seqs=1)
    for name in ("a", "b", "c"):
        add(parts, name, [1, 2, 3])
    advance(parts)
    waiting = snapshot_of(parts).waiting
    assert [(request.request_id, request.waits_for) for request in waiting] == [("b", "seats"), ("c", "turn")]
    assert all(request.seat is None and request.block_ids == () for request in waiting)


def test_waste_is_the_slots_that_hold_nothing() -> None:
    parts = make_core()
    add(parts, "a", list(range(20)))
    advance(parts)
    stats = snapshot_of(parts).kv_cache
    assert (stats.num_used_blocks, stats.num_empty_slots) == (2, 12)
    assert stats.waste == stats.mean_waste == pytest.approx(12 / 32)


def test_mean_waste_weighs_each_step_by_what_it_holds() -> None:
    parts = make_core()
    add(parts, "a", list(range(15)))
    advance(parts, 3)  # 15, 16 and 17 tokens in 1, 1 and 2 blocks
    assert snapshot_of(parts).kv_cache.mean_waste == pytest.approx((1 + 0 + 15) / (16 + 16 + 32))


def test_the_last_minute_counts_steps_tokens_and_phases() -> None:
    parts = make_core()
    add(parts, "a", list(range(20)))
    advance(parts, 5)
    taken = snapshot_of(parts)
    totals = Counter[str]()
    for second in taken.last_minute:
        totals.update(steps=second.num_steps, tokens=second.num_tokens, output=second.num_output_tokens)
    assert totals == {"steps": 5, "tokens": 24, "output": 5}
    assert sum(second.phases.schedule + second.phases.output for second in taken.last_minute) > 0


def test_json_reads_back_as_the_same_snapshot() -> None:
    parts = make_core()
    add(parts, "a", list(range(20)), n=2)
    add(parts, "b", list(range(30)))
    advance(parts, 3)
    taken = snapshot_of(parts)
    assert EngineSnapshot.from_json(json.loads(json.dumps(taken.to_json()))) == taken


def test_json_of_an_engine_that_tells_less_is_read_too() -> None:
    taken = snapshot_of(make_core())
    data = json.loads(json.dumps(taken.to_json()))
    for name in ("latencies", "num_preemptions"):
        del data[name]
    assert EngineSnapshot.from_json(data) == taken


@pytest.mark.parametrize("broken", [{}, {"schema": 99}, {"schema": 1}, {"schema": 1, "running": 3}], ids=str)
def test_other_json_is_refused(broken: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        EngineSnapshot.from_json(broken)


def test_an_idle_engine_shows_nothing_in_use() -> None:
    engine, _ = make_engine()
    taken = engine.snapshot()
    assert (taken.running, taken.waiting, taken.output_tokens_per_s) == ((), (), 0.0)
    assert (taken.kv_cache.num_used_blocks, taken.kv_cache.waste, taken.kv_cache.num_available_blocks) == (0, 0.0, 64)
    engine.close()


@pytest.mark.parametrize(
    ("model", "kinds"),
    [("gemma3_text", {"full", "sliding"}), ("qwen3_5_text", {"full", "state"})],
    ids=["window", "states"],
)
def test_groups_of_a_window_and_of_states_are_shown_beside_each_other(model: str, kinds: set[str]) -> None:
    states: list[EngineState] = []

    class Watcher:
        enabled = wants_steps = True
        wants_blocks = False

        def emit(self, event: Event) -> None:
            if isinstance(event, StepFinished) and not states:
                states.append(built.make_observer().copy_state())

    config = EngineConfig(str(TINY / model), kv_cache_memory_bytes="8M", max_model_len=256)
    built = build(config, events=Watcher())
    with LLM.from_engine(built.engine) as llm:
        params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        llm.generate([list(range(5, 105))], params, use_tqdm=False)
    taken = built.make_observer().describe(states[0])
    assert {group.kind for group in taken.cache_groups} == kinds
    for group in taken.cache_groups:
        filled = [block.num_filled for block in group.used]
        assert filled == ([0] if group.kind == "state" else [16] * (len(filled) - 1) + filled[-1:])
        assert all(block.ref_cnt == 1 and block.owners == (0,) for block in group.used)


def test_the_summary_of_a_run_has_hits_and_waste() -> None:
    with LLM(str(TINY / "llama"), kv_cache_memory_bytes="8M", max_model_len=256) as llm:
        params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        for _ in range(2):
            llm.generate([list(range(5, 69))], params, use_tqdm=False)
        stats = llm.kv_cache_stats()
    assert stats.hit_rate == pytest.approx(48 / 128)
    assert stats.summary() == (
        "KV cache: at most 5 blocks of 16 tokens in use, on average 13.8% empty; 38% of the prompts found in the"
        " prefix cache; 0 evictions"
    )
