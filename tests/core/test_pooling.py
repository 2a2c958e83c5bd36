"""Requests that are pooled: their prompt is all that is computed, and its sum all that they give."""

from __future__ import annotations

import pytest
from core_helpers import FULL, Engine, make_endless, make_request, sum_alone

from octavo.errors import RequestError


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("threshold", [0, 1, 3])
def test_a_pooled_request_ends_with_its_prompt_and_gives_its_sum(pooling: str, threshold: int) -> None:
    engine = Engine(long_prefill_token_threshold=threshold)
    requests = [make_request(f"p{i}", range(i, i + 9), arrival=i, pooling=pooling) for i in range(3)]
    engine.add(*requests, make_endless("g", 7))
    completions = engine.finish()
    for request in requests:
        completion = completions[request.request_id, 0]
        assert (completion.finish_reason, completion.token_ids) == ("stop", [])
        assert completion.last.hidden_sum.tolist() == [sum_alone(request)]
    assert engine.scheduler.num_generated_tokens == 12


def test_it_ends_in_the_step_that_computes_its_last_token() -> None:
    engine = Engine()
    engine.add(make_request("a", range(9), pooling="mean"))
    engine.advance()
    assert engine.completions["a", 0].finish_reason == "stop"
    assert engine.manager.pool.used_bytes == 0


def test_the_mean_computes_what_is_cached_and_the_last_does_not() -> None:
    engine = Engine()
    for name, pooling, cached in (("a", "mean", 0), ("b", "mean", 0), ("c", "last", 8), ("d", "last", 8)):
        engine.add(make_request(name, range(9), pooling=pooling, arrival=ord(name)))
        engine.finish()
        assert engine.completions[name, 0].last.num_cached_tokens == cached


def test_a_sum_begins_anew_after_a_failed_step() -> None:
    engine = Engine(long_prefill_token_threshold=2, windows=(FULL, 5))
    request = make_request("a", range(12), pooling="mean", arrival=0)
    engine.add(request, make_endless("g", 7, max_tokens=40))
    engine.advance(3)
    for stage in ("submit", "body"):
        engine.executor.fault = lambda _, at, stage=stage: _raise() if at == stage else None
        engine.advance()
        engine.executor.fault = lambda *_: None
    completions = engine.finish()
    assert completions["a", 0].last.hidden_sum.tolist() == [sum_alone(request)]
    assert completions["a", 0].last.num_preemptions >= 1


def _raise() -> None:
    raise RuntimeError("once")


def test_a_sum_that_cannot_be_used_is_an_error_of_its_own_request_and_publishes_nothing() -> None:
    engine = Engine()
    engine.executor.row_error = lambda seat, _: "not finite" if seat.request_id == "bad" else None
    good = make_request("good", range(20, 29), pooling="last", arrival=1)
    engine.add(make_request("bad", range(9), pooling="last", arrival=0), good)
    completions = engine.finish()
    assert (completions["bad", 0].finish_reason, completions["bad", 0].last.error) == ("error", "not finite")
    assert completions["good", 0].last.hidden_sum.tolist() == [sum_alone(good)]
    again = make_request("again", range(9), pooling="last", arrival=2)
    engine.add(again)
    assert engine.finish()["again", 0].last.num_cached_tokens == 0


def test_an_aborted_one_leaves_nothing() -> None:
    engine = Engine(long_prefill_token_threshold=1)
    engine.add(make_request("a", range(9), pooling="mean"), make_endless("g", 7))
    engine.advance(3)
    engine.core.abort_request("a")
    engine.core.abort_request("g")
    completions = engine.finish()
    assert completions["a", 0].finish_reason == "abort"
    assert completions["a", 0].last.hidden_sum is None
    assert engine.manager.pool.used_bytes == 0


def test_a_prompt_may_be_as_long_as_the_context() -> None:
    engine = Engine(max_model_len=20)
    assert engine.core.check_fits(20, 0) == 0
    with pytest.raises(RequestError, match=r"21 tokens, and exceeds max_model_len = 20; shorten it to at most 20 "):
        engine.core.check_fits(21, 0)
    with pytest.raises(RequestError, match="with 1 output token"):
        engine.core.check_fits(20, 1)


def test_a_prompt_that_the_cache_cannot_hold_is_refused_with_the_numbers() -> None:
    engine = Engine(num_blocks=3, max_model_len=100)
    assert engine.core.check_fits(12, 0) == 0
    with pytest.raises(RequestError, match=r"13 \+ 0 = 13 tokens"):
        engine.core.check_fits(13, 0)
