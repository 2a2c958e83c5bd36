"""A model with recurrent states, whole: what its prefix cache finds, and that a restored state gives the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import same_answer_runs as runs
from tiny_models import TINY_DIR

from octavo import LLM, RequestError, SamplingParams

MODEL = TINY_DIR / "qwen3_5_text"
VOCAB = 500
FORK = {"temperature": 0.9, "logprobs": 1, "ignore_eos": True, "max_tokens": 40}


def make_llm(**options: Any) -> LLM:
    return LLM(MODEL, **{**runs.BASE, "enable_prefix_caching": True, **options})


def make_tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(count)]


def make_params(max_tokens: int = 20, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.8, seed=3, logprobs=2, ignore_eos=True, max_tokens=max_tokens, **options)


@pytest.fixture(scope="module")
def uncached() -> Iterator[LLM]:
    with make_llm(enable_prefix_caching=False) as llm:
        yield llm


def assert_as_uncached(uncached: LLM, llm: LLM, prompt: list[int], params: SamplingParams) -> Any:
    """Return the output of `llm`, which must be that of the engine without a cache."""
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    (expected,) = uncached.generate([prompt], params, use_tqdm=False)
    assert runs.exact(output) == runs.exact(expected)
    return output


@pytest.mark.parametrize("prompt_len", [17, 33, 40, 48, 100])
def test_a_prompt_sent_twice_is_computed_from_its_last_border(uncached: LLM, prompt_len: int) -> None:
    prompt = make_tokens(prompt_len, 1)
    with make_llm() as llm:
        for num_cached in (0, (prompt_len - 1) // 16 * 16):
            assert assert_as_uncached(uncached, llm, prompt, make_params(8)).num_cached_tokens == num_cached


@pytest.mark.parametrize("options", [{}, {"num_gpu_blocks_override": 16}, {"long_prefill_token_threshold": 5}], ids=str)
def test_each_of_five_turns_finds_the_turn_before(uncached: LLM, options: dict) -> None:
    prompt = make_tokens(23, 2)
    with make_llm(**options) as llm:
        for turn in range(5):
            output = assert_as_uncached(uncached, llm, prompt, make_params(11 + 5 * turn))
            if turn:
                assert output.num_cached_tokens >= len(prompt) - 16 - 9
            prompt += [*output.outputs[0].token_ids, *make_tokens(9, 20 + turn)]


def test_prompts_that_part_are_restored_where_they_part(uncached: LLM) -> None:
    stem = make_tokens(100, 4)
    with make_llm() as llm:
        found = [
            assert_as_uncached(uncached, llm, stem + make_tokens(30, seed), make_params(5)).num_cached_tokens
            for seed in (5, 6, 7)
        ]
    assert found == [0, 0, 96]


def test_with_one_slot_a_snapshot_is_taken_over_or_lost(uncached: LLM) -> None:
    with make_llm(kv_cache_memory_bytes=75_000) as llm:
        found = [
            assert_as_uncached(uncached, llm, make_tokens(60, seed), make_params(3)).num_cached_tokens
            for seed in (1, 1, 2, 1)
        ]
    assert found == [0, 48, 0, 0]


def test_requests_that_lose_their_slots_and_find_them_again_answer_the_same() -> None:
    workload = runs.make_workload(VOCAB)
    expected = runs.alone(MODEL, workload)
    with make_llm(num_gpu_blocks_override=11) as llm:
        for _ in range(2):
            outputs = workload.generate(llm)
            assert sum(output.metrics.num_preemptions for output in outputs) >= 2
            assert list(map(runs.exact, outputs)) == expected


@pytest.mark.parametrize("options", [{}, {"max_num_seqs": 2}, {"num_gpu_blocks_override": 9}], ids=str)
def test_completions_of_a_fork_are_those_of_single_requests(uncached: LLM, options: dict) -> None:
    prompt = make_tokens(40, 8)
    with make_llm(**options) as llm:
        (forked,) = llm.generate([prompt], SamplingParams(n=4, seed=40, **FORK), use_tqdm=False)
    for index, completion in enumerate(forked.outputs):
        (single,) = uncached.generate([prompt], SamplingParams(seed=40 + index, **FORK), use_tqdm=False)
        assert completion.token_ids == single.outputs[0].token_ids
        assert completion.logprobs == single.outputs[0].logprobs


def test_a_reset_forgets_snapshots(uncached: LLM) -> None:
    prompt = make_tokens(40, 9)
    with make_llm() as llm:
        assert_as_uncached(uncached, llm, prompt, make_params())
        assert llm.reset_prefix_cache()
        assert assert_as_uncached(uncached, llm, prompt, make_params()).num_cached_tokens == 0


def test_a_request_too_long_for_blocks_and_a_slot_is_refused_with_both_counts() -> None:
    with make_llm(num_gpu_blocks_override=4) as llm, pytest.raises(RequestError, match=r"\d blocks \+ 1 state slot"):
        llm.generate([make_tokens(60, 1)], make_params(100), use_tqdm=False)
