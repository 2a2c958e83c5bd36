"""Whatever a request shares the engine with, it gives the tokens it gives alone."""

from __future__ import annotations

import pytest
from core_helpers import FULL, Engine, make_request, tokens_alone
from fake_executor import VOCAB

WINDOWS = pytest.mark.parametrize("windows", [(FULL,), (6,), (FULL, 6), (5, FULL, 9)], ids=str)


def assert_all_as_alone(engine: Engine, requests: list, n: int = 1) -> None:
    for request in requests:
        for index in range(n):
            expected, reason = tokens_alone(request, index)
            assert engine.tokens(request.request_id, index) == expected
            assert engine.completions[request.request_id, index].finish_reason == reason


@WINDOWS
def test_requests_in_a_batch_give_what_they_give_alone(windows: tuple) -> None:
    engine = Engine(windows=windows, num_blocks=40)
    requests = [make_request(f"r{i}", range(i, 2 * i + 5), arrival=i, max_tokens=12, seed=i) for i in range(6)]
    engine.add(*requests)
    engine.finish()
    assert_all_as_alone(engine, requests)


@WINDOWS
def test_preempted_requests_give_what_they_give_alone(windows: tuple) -> None:
    engine = Engine(windows=windows, num_blocks=6, block_size=2)
    requests = [make_request(f"r{i}", [i, 2, 3], arrival=i, max_tokens=6, seed=i, ignore_eos=True) for i in range(4)]
    engine.add(*requests)
    engine.finish()
    assert_all_as_alone(engine, requests)
    assert windows == (6,) or engine.scheduler.roster.num_preemptions >= 2


@WINDOWS
@pytest.mark.parametrize("prompt_len", [7, 8, 9])
def test_forked_completions_give_what_they_give_alone(windows: tuple, prompt_len: int) -> None:
    engine = Engine(windows=windows, num_blocks=40)
    request = make_request(prompt=range(prompt_len), max_tokens=9, n=4, temperature=1.0, ignore_eos=True)
    engine.add(request)
    engine.finish()
    assert_all_as_alone(engine, [request], n=4)
    assert len({tuple(engine.tokens("a", index)) for index in range(4)}) == 4


@WINDOWS
@pytest.mark.parametrize("threshold", [1, 3, 0])
def test_chunks_of_any_size_give_the_same_tokens(windows: tuple, threshold: int) -> None:
    engine = Engine(windows=windows, num_blocks=40, long_prefill_token_threshold=threshold)
    requests = [make_request(f"r{i}", range(i, i + 20), arrival=i, max_tokens=5, seed=i) for i in range(3)]
    engine.add(*requests)
    engine.finish()
    assert_all_as_alone(engine, requests)


@WINDOWS
def test_a_second_turn_hits_the_prefix_cache_and_gives_the_same_tokens(windows: tuple) -> None:
    engine = Engine(windows=windows, num_blocks=40)
    first = make_request("first", range(17), max_tokens=8, ignore_eos=True)
    engine.add(first)
    engine.finish()
    prompt = [*range(17), *engine.tokens("first"), 3 % VOCAB]
    second = make_request("second", prompt, arrival=1, max_tokens=8)
    engine.add(second)
    engine.finish()
    assert_all_as_alone(engine, [first, second])
    last = engine.completions["second", 0].last
    assert last is not None
    assert last.num_cached_tokens == 24
