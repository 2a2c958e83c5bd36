from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from octavo import RequestError, RequestOutputKind, SamplingParams

NAN, INF = float("nan"), float("inf")

BAD_VALUES: list[tuple[str, Any, str]] = [
    *(("n", value, "n must be") for value in (0, -1, 1.5, "2", 16_385, 2**31, 2**63, 1e308, True)),
    *(("temperature", value, "finite") for value in (NAN, INF, -INF, 10**400)),
    *(("temperature", value, r"\[0, 2\]") for value in (-0.1, 2.01)),
    ("temperature", "hot", "must be a number"),
    *(("top_p", value, "top_p must be") for value in (0, -1, 1.0001, NAN)),
    *(("min_p", value, "min_p must be") for value in (2, -0.1, NAN)),
    *(("top_k", value, "top_k must be") for value in (-2, 2**31, 1.5)),
    *(("repetition_penalty", value, "repetition_penalty must be") for value in (0, -1, INF, NAN, 1e-300)),
    *(("presence_penalty", value, r"\[-2, 2\]") for value in (2.01, -2.01)),
    *(("frequency_penalty", value, r"\[-2, 2\]") for value in (2.01, -2.01)),
    *(("max_tokens", value, "max_tokens must be") for value in (0, -1, 2**63, 1.5)),
    *(("min_tokens", value, "min_tokens must be") for value in (-1, 17, 2**63)),
    *(("logprobs", value, "logprobs must be") for value in (-2, "x", 1.5, 2**63)),
    *(("prompt_logprobs", value, "prompt_logprobs must be") for value in (-2, "x")),
    *(
        ("logit_bias", value, "logit_bias")
        for value in ({-1: 5.0}, {"abc": 1.0}, {1: NAN}, {1: INF}, [1], {2**40: 1.0})
    ),
    ("logit_bias", dict.fromkeys(range(200_000), 1.0), "at most 65536 entries"),
    *(("stop_token_ids", value, "stop_token_ids must") for value in ([-1], [2**40], [1.5], [True], 5, "x")),
    *(("allowed_token_ids", value, "allowed_token_ids") for value in ([], [-1], [2**40], ["a"])),
    *(("bad_words", value, "bad_words") for value in ([""], ["a"] * 10_000, "word", [5], ["\ud800"])),
    *(("stop", value, "stop") for value in ("", [""], ["a", ""], [5], 5, ["a"] * 129, ["a" * (1 << 20), "b"])),
    *(("seed", value, "seed must be") for value in (-(2**63) - 1, 2**63, 1.5, "a")),
    *(("logprob_token_ids", value, "logprob_token_ids must") for value in ([], [-1], [2**40], [1] * 129, 5, "x")),
    *(
        ("prompt_logprob_token_ids", value, "prompt_logprob_token_ids must")
        for value in ([], [[]], [1], [["a"]], [[-2]], [[2**40]], 5, "x", {1: [2]})
    ),
    ("prompt_logprob_start", 1, "needs prompt_logprob_token_ids"),
    ("output_kind", 1, "output_kind must be"),
    ("flat_logprobs", True, "not supported"),
    ("thinking_token_budget", 5, "use max_tokens"),
    ("repetition_detection", {}, "use repetition_penalty"),
    ("extra_args", {"a": 1}, "leave it out"),
    ("best_of", 10**9, "use n"),
    ("use_beam_search", True, "use LLM.beam_search"),
    ("logits_processors", [print], "use logit_bias"),
    ("guided_decoding", {}, "use structured_outputs"),
    ("truncate_prompt_tokens", 5, "truncate"),
]


@pytest.mark.parametrize(
    ("name", "value", "message"), BAD_VALUES, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(BAD_VALUES)]
)
def test_a_value_that_cannot_be_served_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 400


def test_rows_of_named_tokens_are_made_equally_long_and_arrays_are_taken() -> None:
    params = SamplingParams(prompt_logprob_token_ids=[[1, 2], [], [3]])
    assert params.prompt_logprob_token_ids == [[1, 2], [-1, -1], [3, -1]]
    assert params.skip_reading_prefix_cache
    array = np.array([[1, 2], [3, -1]])
    given = SamplingParams(prompt_logprob_token_ids=array)  # type: ignore[arg-type]
    assert given.prompt_logprob_token_ids == [[1, 2], [3, -1]]


def test_as_many_logprobs_as_named_tokens_may_be_asked_for() -> None:
    assert SamplingParams(logprob_token_ids=[1, 2], logprobs=2).logprob_token_ids == [1, 2]
    with pytest.raises(RequestError, match=r"logprobs must be the number of logprob_token_ids \(2\)"):
        SamplingParams(logprob_token_ids=[1, 2], logprobs=3)


def test_a_copy_shares_no_list_of_named_tokens() -> None:
    params = SamplingParams(logprob_token_ids=[1], prompt_logprob_token_ids=[[1]])
    copy = params.clone()
    assert copy.logprob_token_ids is not params.logprob_token_ids
    assert copy.prompt_logprob_token_ids is not params.prompt_logprob_token_ids


@pytest.mark.parametrize("seed", [0, 2**63 - 1, -(2**63)])
def test_any_64_bit_seed_is_kept(seed: int) -> None:
    assert SamplingParams(seed=seed).seed == seed


def test_seed_minus_one_means_no_seed() -> None:
    assert SamplingParams(seed=-1).seed is None


def test_an_unknown_name_is_a_type_error_that_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6, 1e-320])
def test_a_tiny_temperature_is_greedy_and_resets_truncation(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.5, top_k=3, min_p=0.2)
    assert params.greedy
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)


def test_greedy_with_several_completions_is_refused() -> None:
    with pytest.raises(RequestError, match="n must be 1 when using greedy sampling"):
        SamplingParams(temperature=0, n=2)


def test_a_small_temperature_is_raised_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"raised to 0\.01"):
        params = SamplingParams(temperature=0.001)
    assert params.temperature == 0.01


def test_values_are_normalised() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[3, 3, 1], top_k=-1, logprobs=True)
    assert (params.stop, params.stop_token_ids, params.top_k, params.logprobs) == (["x"], [3, 1], 0, 1)
    assert SamplingParams().stop == []


def test_prompt_logprobs_skip_reading_the_prefix_cache() -> None:
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache
    assert not SamplingParams().skip_reading_prefix_cache


def test_from_optional_ignores_none_and_clamps_biases() -> None:
    params = SamplingParams.from_optional(temperature=None, top_p=0.5, logit_bias={"5": 1000, 6: -1000.0})
    assert params.temperature == 1.0
    assert params.logit_bias == {5: 100.0, 6: -100.0}


@pytest.mark.parametrize("bias", [{"abc": 1}, {"1": NAN}, {"-1": 5}, {"--1": 5}, {"9" * 30: 1}, 5], ids=repr)
def test_from_optional_refuses_a_bad_bias(bias: Any) -> None:
    with pytest.raises(RequestError, match="logit_bias"):
        SamplingParams.from_optional(logit_bias=bias)


def test_a_clone_shares_no_list() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[1], logit_bias={1: 1.0}, bad_words=["b"], allowed_token_ids=[1])
    clone = params.clone()
    assert clone == params
    for name in ("stop", "stop_token_ids", "logit_bias", "bad_words", "allowed_token_ids"):
        assert getattr(clone, name) is not getattr(params, name)


def test_copies_and_pickles_are_equal() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], output_kind=RequestOutputKind.DELTA)
    assert copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params


def test_verify_finds_what_was_assigned_later() -> None:
    params = SamplingParams()
    params.top_p = 7.0
    with pytest.raises(RequestError, match="top_p"):
        params.verify()


def test_all_stop_token_ids_hold_the_models_own_unless_ignored() -> None:
    params = SamplingParams(stop_token_ids=[5])
    params.eos_token_ids = frozenset({2})
    assert params.all_stop_token_ids == {2, 5}
    params.ignore_eos = True
    assert params.all_stop_token_ids == {5}
