"""Real models against a float32 reference made with other software (its names and versions are in the data file)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams

TEXT = (Path(__file__).parent.parent / "data" / "perplexity.txt").read_text(encoding="utf-8")
MODELS = {"smollm2-135m-instruct-q4_1": "smollm2_path", "gemma-3-270m-q4_k_m": "gemma_path"}
"""Name in the data file, and the fixture with the model's path."""
LOGPROB_TOLERANCE = 1e-3
"""Of float32 sums in another order, through all layers."""
DECIDED_MARGIN = 0.3
"""Quantised activations and float16 keys move logits by less: below this margin the other token may win."""

PERPLEXITY_TOLERANCE = 0.01
INT8_CACHE_TOLERANCE = 0.005
"""Of exact activations: rounded ones add noise of about 0.2 %, whatever changes."""


def greedy(max_tokens: int, logprobs: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=logprobs, ignore_eos=True)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest, reference_greedy: dict) -> tuple[Path, list[dict]]:
    """A model's path, and its reference results."""
    path = request.getfixturevalue(MODELS[request.param])
    return path, reference_greedy[request.param]["results"]


def test_prompts_have_the_references_token_ids(case) -> None:
    path, results = case
    with LLM(path, max_model_len=512) as llm:
        tokenizer = llm.get_tokenizer()
        for result in results:
            if result["messages"] is None:
                (output,) = llm.generate(result["prompt"], greedy(1, 0), use_tqdm=False)
                assert output.prompt_token_ids == result["prompt_ids"]
            else:
                text = tokenizer.apply_chat_template(result["messages"], tokenize=False, add_generation_prompt=True)
                assert tokenizer.encode(text, add_special_tokens=False) == result["prompt_ids"]


def test_float_path_gives_the_references_tokens_and_logprobs(case) -> None:
    path, results = case
    with LLM(path, max_model_len=512, activation_quantization=False, kv_cache_dtype="float32") as llm:
        prompts = [result["prompt_ids"] for result in results]
        outputs = llm.generate(prompts, greedy(32, 10), use_tqdm=False)
    for output, result in zip(outputs, results, strict=True):
        completion = output.outputs[0]
        assert completion.token_ids == result["output_ids"]
        for position, step in zip(completion.logprobs, result["steps"], strict=True):
            for token_id, logprob in step["top5"]:
                assert position[token_id].logprob == pytest.approx(logprob, abs=LOGPROB_TOLERANCE)


def test_float_path_scores_prompts_as_the_reference_does(case) -> None:
    path, results = case
    with LLM(path, max_model_len=512, activation_quantization=False, kv_cache_dtype="float32") as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        outputs = llm.generate([result["prompt_ids"] for result in results], params, use_tqdm=False)
    for output, result in zip(outputs, results, strict=True):
        assert output.prompt_logprobs[0] is None
        scored = zip(output.prompt_logprobs[1:], result["prompt_ids"][1:], result["prompt_logprobs"][1:], strict=True)
        for position, token_id, logprob in scored:
            assert position[token_id].logprob == pytest.approx(logprob, abs=LOGPROB_TOLERANCE)


def test_default_path_differs_first_where_the_reference_is_undecided(case) -> None:
    path, results = case
    with LLM(path, max_model_len=512) as llm:
        prompts = [result["prompt_ids"] for result in results]
        outputs = llm.generate(prompts, greedy(32, 0), use_tqdm=False)
    for output, result in zip(outputs, results, strict=True):
        for token_id, step in zip(output.outputs[0].token_ids, result["steps"], strict=True):
            if token_id != step["token"]:
                first, second = step["top5"][0][1], step["top5"][1][1]
                assert first - second < DECIDED_MARGIN
                break


def test_default_path_keeps_the_perplexity_of_the_float_path(case) -> None:
    path, _ = case
    exact = perplexity(path, activation_quantization=False, kv_cache_dtype="float32")
    assert perplexity(path) == pytest.approx(exact, rel=PERPLEXITY_TOLERANCE)


def test_an_int8_cache_keeps_the_perplexity_of_a_float16_cache(case) -> None:
    path, _ = case
    exact = perplexity(path, activation_quantization=False)
    int8 = perplexity(path, activation_quantization=False, kv_cache_dtype="int8")
    assert int8 == pytest.approx(exact, rel=INT8_CACHE_TOLERANCE)


def perplexity(path: Path, **options: object) -> float:
    """Return the perplexity of a model on a text that was written for this test."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with LLM(path, max_model_len=2048, **options) as llm:
        (output,) = llm.generate(TEXT, params, use_tqdm=False)
    scored = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    logprobs = [position[token_id].logprob for token_id, position in scored]
    assert len(logprobs) > 1000
    return math.exp(-sum(logprobs) / len(logprobs))
