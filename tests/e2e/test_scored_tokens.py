"""Logprobs of tokens that the request names: of its prompt, of others in their places, and while it generates."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import TINY_DIR, read_reference

from octavo import LLM, RequestError, SamplingParams

FLOAT = {"activation_quantization": False, "kv_cache_dtype": "float32", "num_threads": 2}
TOLERANCE = 2e-4
PROMPT = read_reference("llama").input_ids


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(TINY_DIR / "llama", long_prefill_token_threshold=5, **FLOAT) as engine:
        yield engine


def expected() -> np.ndarray:
    """Transformers' logprobs: row i is of what follows token i."""
    logits = read_reference("llama").logits.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logprobs


def generate(llm: LLM, *prompts: Any, **params: Any) -> list[Any]:
    return llm.generate(list(prompts), SamplingParams(temperature=0, max_tokens=1, **params), use_tqdm=False)


@pytest.mark.parametrize("num_logprobs", [0, 2])
def test_a_given_text_is_scored_token_by_token_also_where_it_is_cached(llm: LLM, num_logprobs: int) -> None:
    generate(llm, PROMPT)  # now it is in the prefix cache
    (output,) = generate(llm, {"prompt_token_ids": PROMPT}, prompt_logprobs=num_logprobs)
    assert output.num_cached_tokens == 0
    assert output.prompt_logprobs[0] is None
    scores = [entry[token].logprob for token, entry in zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True)]
    wanted = expected()[np.arange(len(PROMPT) - 1), PROMPT[1:]]
    assert np.abs(np.array(scores) - wanted).max() < TOLERANCE
    assert all(num_logprobs <= len(entry) <= num_logprobs + 1 for entry in output.prompt_logprobs[1:])


@pytest.mark.parametrize("start", [None, 0, 1, 30, 46])
@pytest.mark.parametrize("others", [{}, {"prompt_logprobs": 1}, {"logprobs": 2}], ids=["alone", "prompt", "output"])
def test_named_tokens_are_scored_in_the_places_of_the_prompts(llm: LLM, start: int | None, others: Any) -> None:
    generate(llm, PROMPT)
    first = start or 0
    rng = np.random.default_rng(first)
    ids = rng.integers(0, 2048, (len(PROMPT) - 1 - first, 3))
    given: Any = [row[: 1 + index % 3].tolist() for index, row in enumerate(ids)]  # rows of one, two and three
    (output,) = generate(llm, PROMPT, prompt_logprob_token_ids=given, prompt_logprob_start=start, **others)
    scores = output.prompt_token_id_logprobs
    assert scores.dtype == np.float32
    wanted = np.take_along_axis(expected()[first : len(PROMPT) - 1], ids, axis=1)
    padded = np.array([[column > index % 3 for column in range(scores.shape[1])] for index in range(len(ids))])
    assert np.isneginf(scores[padded]).all()
    assert np.abs(scores - wanted[:, : scores.shape[1]])[~padded].max() < TOLERANCE
    assert (output.prompt_logprobs is None) == ("prompt_logprobs" not in others)
    assert (output.outputs[0].logprobs is None) == ("logprobs" not in others)


def test_scores_are_the_same_bytes_whatever_the_company_and_the_chunks(llm: LLM) -> None:
    prompts = [PROMPT, PROMPT[:7], PROMPT[3:40]]
    params = [
        SamplingParams(temperature=0, max_tokens=3, prompt_logprob_token_ids=[[5, 6]] * (len(p) - 1), ignore_eos=True)
        for p in prompts
    ]
    alone = [llm.generate([p], own, use_tqdm=False)[0] for p, own in zip(prompts, params, strict=True)]
    with LLM(TINY_DIR / "llama", max_num_batched_tokens=64, max_num_seqs=2, **FLOAT) as other:
        together = other.generate(prompts, params, use_tqdm=False)
    for one, same in zip(alone, together, strict=True):
        assert one.prompt_token_id_logprobs.tobytes() == same.prompt_token_id_logprobs.tobytes()


def test_named_tokens_are_reported_while_generating(llm: LLM) -> None:
    ids = [9, 3, 2000]
    plain, named = (
        llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=4, **own), use_tqdm=False)[0].outputs[0]
        for own in ({"logprobs": 1}, {"logprob_token_ids": ids, "logit_bias": {5: -1.0}, "repetition_penalty": 1.0})
    )
    assert named.token_ids == plain.token_ids
    assert named.cumulative_logprob == plain.cumulative_logprob
    for token, entry in zip(named.token_ids, named.logprobs, strict=True):
        assert list(entry) == [token, *ids]
    wanted = expected()[-1]
    first = named.logprobs[0]
    assert [first[token].logprob for token in ids] == pytest.approx(wanted[ids].tolist(), abs=TOLERANCE)
    assert first[9].rank is None
    assert first[9].decoded_token is not None


def test_requests_that_name_tokens_and_others_run_side_by_side(llm: LLM) -> None:
    ways: list[dict[str, Any]] = [
        {"logprob_token_ids": [1, 2], "min_tokens": 2},
        {"logprobs": 3},
        {"logprob_token_ids": [7]},
        {"repetition_penalty": 1.2},
        {"logprob_token_ids": list(range(100)), "prompt_logprob_token_ids": [[4]] * 47},
    ]
    params = [SamplingParams(seed=3, max_tokens=6, ignore_eos=True, **way) for way in ways]
    alone = [llm.generate([PROMPT], own, use_tqdm=False)[0] for own in params]
    for one, same in zip(alone, llm.generate([PROMPT] * len(ways), params, use_tqdm=False), strict=True):
        assert same.outputs == one.outputs


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"prompt_logprob_token_ids": [[1]] * 46}, "has 46 rows, not one for each token of the prompt"),
        ({"prompt_logprob_token_ids": [[1]] * 47, "prompt_logprob_start": 1}, "has 47 rows"),
        ({"prompt_logprob_token_ids": [[2048]] * 47}, "out of vocabulary"),
        ({"prompt_logprob_token_ids": [[1] * 21] * 47}, "more than max_logprobs"),
        ({"logprob_token_ids": [2048]}, "out of vocabulary"),
    ],
    ids=["rows", "start", "vocabulary", "width", "output"],
)
def test_lists_that_do_not_fit_the_prompt_or_the_model_are_refused(llm: LLM, params: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        generate(llm, PROMPT, **params)


@pytest.mark.parametrize(
    "scores",
    [{"prompt_logprobs": 1}, {"prompt_logprob_token_ids": [[3]] * 11}],
    ids=["best", "named"],
)
def test_a_prompt_that_cannot_be_scored_is_an_error_of_its_own_request(tmp_path: Path, scores: dict[str, Any]) -> None:
    bad_token, prompts = 777, [list(range(40 * i + 1, 40 * i + 13)) for i in range(3)]
    bad_prompt = [*prompts[1][:6], bad_token, *prompts[1][7:]]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, **scores)
    with LLM(make_poisoned_model(tmp_path, bad_token), long_prefill_token_threshold=5, **FLOAT) as llm:
        good = llm.generate([prompts[0], prompts[2]], params, use_tqdm=False)
        outputs = llm.generate([prompts[0], bad_prompt, prompts[2]], params, use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length"]
    assert "not finite" in outputs[1].error.message
    assert outputs[1].metrics.is_corrupted
    told = outputs[1].prompt_logprobs[1:] if "prompt_logprobs" in scores else outputs[1].prompt_token_id_logprobs
    assert len(told) == 5, "those of the first chunk, and no numbers that mean nothing"
    for output, expected_output in zip(outputs[::2], good, strict=True):
        assert output.outputs == expected_output.outputs
        assert output.prompt_logprobs == expected_output.prompt_logprobs


def make_poisoned_model(path: Path, bad_token: int) -> Path:
    """A model whose hidden states are not numbers from this token on."""
    for source in (TINY_DIR / "qwen3").iterdir():
        (path / source.name).write_bytes(source.read_bytes())
    content = bytearray((path / "model.safetensors").read_bytes())
    header_end = 8 + struct.unpack_from("<Q", content)[0]
    entry = json.loads(content[8:header_end])["model.embed_tokens.weight"]
    row_bytes = entry["shape"][1] * 4
    first = header_end + entry["data_offsets"][0] + bad_token * row_bytes
    content[first : first + row_bytes] = np.full(entry["shape"][1], np.nan, np.float32).tobytes()
    (path / "model.safetensors").write_bytes(content)
    return path
