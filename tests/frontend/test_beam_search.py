"""Beam search against a search that keeps every continuation, on a tiny model, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from face_fakes import make_llm
from tiny_models import TINY_DIR

from octavo import LLM, BeamSearchParams, RequestError, SamplingParams

PROMPTS = [{"prompt_token_ids": [5, 77, 301, 12]}, {"prompt_token_ids": [19, 7]}]
VOCAB = 391


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(TINY_DIR / "smollm3", tokenizer=TINY_DIR / "llama", max_logprobs=-1, kv_cache_dtype="float32") as loaded:
        yield loaded


def next_logprobs(llm: LLM, prompts: list[list[int]]) -> np.ndarray:
    """Return the logprobs [prompts, V] of every next token."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    rows = [output.outputs[0].logprobs[0] for output in outputs]
    return np.array([[row[token].logprob for token in range(VOCAB)] for row in rows])


def test_a_wide_enough_beam_finds_the_most_probable_continuation(llm: LLM) -> None:
    """Of all 391 x 391 pairs of tokens: the first ones that matter are within the beam."""
    prompt = PROMPTS[0]["prompt_token_ids"]
    first = next_logprobs(llm, [prompt])[0]
    order = np.argsort(-first)[:60]
    second = next_logprobs(llm, [[*prompt, int(token)] for token in order])
    totals = first[order][:, None] + second
    best = np.argsort(-totals, axis=None)[:3]
    expected = [(int(order[i // VOCAB]), int(i % VOCAB)) for i in best]
    params = BeamSearchParams(beam_width=60, max_tokens=2, ignore_eos=True)
    (output,) = llm.beam_search([PROMPTS[0]], params)
    found = [tuple(sequence.tokens[len(prompt) :]) for sequence in output.sequences[:3]]
    assert found == expected
    assert output.sequences[0].cum_logprob == pytest.approx(totals.max())


def test_a_beam_of_one_is_the_greedy_answer(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    greedy = llm.generate(PROMPTS, params, use_tqdm=False)
    found = llm.beam_search(PROMPTS, BeamSearchParams(beam_width=1, max_tokens=6, ignore_eos=True))
    for prompt, output, beams in zip(PROMPTS, greedy, found, strict=True):
        (sequence,) = beams.sequences
        assert sequence.tokens == [*prompt["prompt_token_ids"], *output.outputs[0].token_ids]
        assert sequence.text == llm.get_tokenizer().decode(sequence.tokens, skip_special_tokens=True)
        assert sequence.finish_reason == "length"
        assert len(sequence.logprobs) == 6


def test_beams_do_not_depend_on_company(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    together = llm.beam_search(PROMPTS, params)
    assert llm.beam_search(PROMPTS, params, concurrency_limit=1) == together
    assert [llm.beam_search(prompt, params)[0] for prompt in PROMPTS] == together


def test_beams_are_ordered_by_the_mean_of_their_logprobs(llm: LLM) -> None:
    (output,) = llm.beam_search([PROMPTS[1]], BeamSearchParams(beam_width=4, max_tokens=5))
    scores = [
        sequence.cum_logprob / (len(sequence.tokens) - (sequence.finish_reason == "stop"))
        for sequence in output.sequences
    ]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("penalty", "lengths"), [(100, [40, 40, 40]), (1, [1, 40, 40]), (-100, [1, 40, 40])])
def test_a_penalty_whose_powers_no_float_holds_orders_the_beams_of_a_long_prompt(
    penalty: int, lengths: list[int]
) -> None:
    """One beam ends at once, at a cost of 0.5; the others cost at least 0.1 a token, so 4.0, 4.1 and 4.1."""
    llm, _ = make_llm(next_token=lambda ids, _: 256 if len(ids) == 1_800 else 65, max_model_len=2_048, num_blocks=512)
    params = BeamSearchParams(beam_width=3, max_tokens=40, length_penalty=penalty)
    (output,) = llm.beam_search([{"prompt_token_ids": [65] * 1_800}], params)
    assert [len(sequence.tokens) - 1_800 for sequence in output.sequences] == lengths


def test_a_beam_that_ends_is_kept_as_it_is(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = PROMPTS[0]["prompt_token_ids"]
    end = int(np.argmax(next_logprobs(llm, [prompt])[0]))
    monkeypatch.setattr(llm.get_tokenizer(), "eos_token_ids", [end])
    (output,) = llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=2, max_tokens=4, length_penalty=0.0))
    best = output.sequences[0]
    assert (best.tokens, best.finish_reason) == ([*prompt, end], "stop")
    assert best.text == llm.get_tokenizer().decode(prompt, skip_special_tokens=True)
    (other,) = llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True))
    assert all(len(sequence.tokens) == len(prompt) + 4 for sequence in other.sequences)


def test_what_cannot_be_searched_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"max_tokens \(600\) is more than the 508 tokens"):
        llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=1, max_tokens=600))
    with pytest.raises(RequestError, match="beam_width must be in"):
        BeamSearchParams(beam_width=0, max_tokens=4)
    with pytest.raises(RequestError, match="concurrency_limit must be at least 1"):
        llm.beam_search(PROMPTS, BeamSearchParams(beam_width=1, max_tokens=1), concurrency_limit=0)


@pytest.mark.parametrize("limit", [1.5, "2", True])
def test_a_concurrency_limit_that_is_no_integer_is_refused(limit: Any) -> None:
    llm, _ = make_llm()
    with pytest.raises(RequestError, match="concurrency_limit must be an integer, or None"):
        llm.beam_search("ab", BeamSearchParams(beam_width=1, max_tokens=1), concurrency_limit=limit)


def test_a_search_wider_than_the_logprobs_of_the_engine_is_refused_in_its_own_words() -> None:
    with LLM(TINY_DIR / "smollm3", tokenizer=TINY_DIR / "llama", num_threads=1) as llm:
        with pytest.raises(
            RequestError, match=r"beam_width \(11\) needs the 22 .* at most 10 .* raise .* max_logprobs"
        ) as refusal:
            llm.beam_search(PROMPTS, BeamSearchParams(beam_width=11, max_tokens=2))
        assert (refusal.value.parameter, refusal.value.value) == ("beam_width", 11)
        assert len(llm.beam_search(PROMPTS, BeamSearchParams(beam_width=10, max_tokens=2))) == 2


def test_a_search_that_the_cache_cannot_hold_is_refused_before_it_begins() -> None:
    llm, _ = make_llm(num_blocks=2)
    with pytest.raises(RequestError, match="raise kv_cache_memory_bytes") as refusal:
        llm.beam_search(["ok", "x" * 10], BeamSearchParams(beam_width=2, max_tokens=30))
    assert refusal.value.parameter == "max_tokens"
    assert llm.kv_cache_stats().peak_used_blocks == 0


def test_a_beam_that_cannot_go_on_ends_the_search_with_its_reason() -> None:
    llm, _ = make_llm(next_token=lambda ids, _: -1 if len(ids) == 4 else 65)
    with pytest.raises(RequestError, match=r"a beam of prompt 1 cannot go on: .*not finite"):
        llm.beam_search(["a" * 10, "bc"], BeamSearchParams(beam_width=2, max_tokens=4))
