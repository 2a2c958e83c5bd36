"""`Scheduler.update`: what a step's result makes of the requests in it."""

from __future__ import annotations

import pytest
from core_helpers import Engine, make_endless, make_request, tokens_alone

from octavo.core.step import ModelRunnerOutput


def test_prompt_logprobs_come_once_for_each_token_but_the_first() -> None:
    engine = Engine(num_blocks=9, long_prefill_token_threshold=3)
    request = make_endless("a", 5, prompt_len=15, max_tokens=6, prompt_logprobs=0, n=2, temperature=1.0)
    engine.add(make_endless("b", 0, max_tokens=20), request)
    engine.finish()
    assert engine.completions["a", 0].scored_ids == request.token_ids.tolist()[1:15]
    assert engine.completions["a", 1].scored_ids == []


def test_prompt_logprobs_are_not_sent_again_after_a_preemption() -> None:
    engine = Engine(max_num_batched_tokens=4)
    request = make_endless("a", 0, prompt_len=10, prompt_logprobs=0)
    engine.add(request)
    engine.advance(2)
    engine.scheduler.roster.preempt(list(engine.scheduler.roster.running), "step_failed")
    engine.finish()
    assert engine.completions["a", 0].scored_ids == request.token_ids.tolist()[1:10]
    assert [[rows.first_position for rows in plan.prompt_logprob_rows] for plan in engine.executor.plans[:5]] == [
        [1], [5], [], [], [9]
    ]  # fmt: skip


@pytest.mark.parametrize("damage", ["tokens", "logprobs", "scores"])
def test_a_result_that_does_not_match_the_plan_publishes_nothing(damage: str) -> None:
    engine = Engine()
    engine.add(make_endless("a", 0, prompt_logprobs=0))
    plan = engine.scheduler.schedule()
    result = ModelRunnerOutput([1], [None], {0: []})
    {"tokens": result.token_ids, "logprobs": result.logprobs, "scores": result.prompt_logprobs}[damage].clear()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="asked for"):
        engine.scheduler.update(plan, result)
    assert engine.scheduler.has_open_step
    assert engine.scheduler.roster.running[0].num_computed_tokens == 0


def test_the_output_tells_cached_tokens_preemptions_and_the_seed() -> None:
    engine = Engine()
    engine.add(make_request("a", range(9), max_tokens=1))
    engine.finish()
    engine.add(make_request("b", range(9), arrival=1, max_tokens=1, seed=77))
    engine.finish()
    last = engine.completions["b", 0].last
    assert last is not None
    assert (last.num_cached_tokens, last.num_preemptions, last.seed) == (8, 0, 77)


def test_a_request_with_a_failed_row_publishes_nothing_of_that_step() -> None:
    engine = Engine()
    engine.executor.row_error = lambda seat, _: "not finite" if seat.request_id == "bad" else None
    good = make_endless("good", 1)
    engine.add(make_endless("bad", 0, prompt_len=8), good)
    engine.finish()
    assert engine.completions["bad", 0].last.error == "not finite"  # type: ignore[union-attr]
    assert engine.tokens("bad") == []
    assert engine.tokens("good") == tokens_alone(good)[0]
    assert engine.manager.find_cached_prefix(make_endless("again", 0, prompt_len=9)) == []


def test_a_request_whose_prompt_could_not_be_scored_ends_without_these_scores() -> None:
    engine = Engine(max_num_batched_tokens=8)
    engine.executor.score_error = lambda _seat, position: "not finite" if position == 12 else None
    good, bad = make_endless("good", 1), make_endless("bad", 0, prompt_len=15, prompt_logprobs=0)
    engine.add(good, bad)
    engine.finish()
    assert engine.completions["bad", 0].last.error == "not finite"  # type: ignore[union-attr]
    assert engine.completions["bad", 0].scored_ids == bad.token_ids.tolist()[1:9], "those of the chunk before"
    assert engine.tokens("good") == tokens_alone(good)[0]
