"""From parameters and history to a token: the sampler and the native kernel together, against the numpy oracle."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.native import kernels
from octavo.sampling import reference
from octavo.sampling.sampler import SampledRows, Sampler
from octavo.sampling_params import SamplingParams

VOCAB = 1000
PROMPT_LEN = 30
POSITION = 50
LOGPROB_TOLERANCE = 2e-5
"""The kernel's logarithm of a sum in float32 pieces against float64."""

CASES: dict[str, dict] = {
    "greedy": {"temperature": 0},
    "greedy with penalties": {"temperature": 0, "repetition_penalty": 1.6, "frequency_penalty": 0.4},
    "plain": {},
    "temperature": {"temperature": 0.4},
    "top k": {"top_k": 7},
    "top p": {"top_p": 0.6},
    "min p": {"min_p": 0.1},
    "all cuts": {"temperature": 1.3, "top_k": 40, "top_p": 0.85, "min_p": 0.02},
    "top k of all": {"top_k": VOCAB + 5, "temperature": 0.7},
    "allowed": {"allowed_token_ids": list(range(5, VOCAB, 9)), "top_p": 0.9},
    "bias": {"logit_bias": {3: 6.0, 700: -4.0}},
    "min tokens": {"min_tokens": 40, "stop_token_ids": [9, 13], "temperature": 0.2},
    "bad words": {"temperature": 0.3},
    "everything": {
        "temperature": 0.9,
        "top_k": 60,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.3,
        "min_tokens": 25,
        "logit_bias": {2: 3.0},
        "allowed_token_ids": list(range(0, VOCAB, 2)),
    },
}


def sample_natively(
    params: SamplingParams, token_ids: list[int], logits: np.ndarray, seed: int
) -> reference.ReferenceSample:
    sampler = Sampler(1, VOCAB)
    sampler.assign(0, params, PROMPT_LEN, seed)
    rows = SampledRows(np.array([0], np.int32), np.array([0], np.int32), np.array([len(token_ids)], np.int32))
    batch, errors = sampler.build(rows, np.array([token_ids], np.int32))
    assert errors == {}
    choice = batch.choices[0]
    num_top = max(0, int(choice["num_logprobs"]))
    top_ids, top_logprobs = np.zeros(num_top, np.int32), np.zeros(num_top, np.float32)
    edits = {}
    if batch.edits is not None:
        edits["edit_ids"] = np.ascontiguousarray(batch.edits["token_id"])
        edits["edits"] = np.stack([batch.edits[name] for name in ("bias", "repetition", "penalty")], axis=1)
    token_id, status, rank, logprob = kernels().sample_row(
        logits.copy(),
        temperature=float(choice["temperature"]),
        top_k=int(choice["top_k"]),
        top_p=float(choice["top_p"]),
        min_p=float(choice["min_p"]),
        seed=int(choice["seed"]),
        position=int(choice["position"]),
        num_logprobs=int(choice["num_logprobs"]),
        **edits,
        allowed=batch.allowed[0] if choice["allowed_row"] == 0 else None,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )
    assert status == 0
    return reference.ReferenceSample(token_id, logprob, rank, top_ids.tolist(), top_logprobs.tolist())


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_tokens_and_logprobs_are_those_of_the_oracle(values: dict) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        params = SamplingParams(max_tokens=None, logprobs=4, **values)
        params.eos_token_ids = frozenset({2, 4})
        logits = rng.normal(0, 3, VOCAB).astype(np.float32)
        token_ids = rng.integers(0, 60, POSITION).tolist()
        if values == CASES["bad words"]:
            first, second = np.argsort(-logits)[:2].tolist()
            params.bad_words_token_ids = [[first], [*token_ids[-2:], second]]
        uniform = reference.philox_uniform(seed, POSITION, 0)
        expected = reference.sample(logits, params, PROMPT_LEN, token_ids, uniform)
        actual = sample_natively(params, token_ids, logits, seed)
        assert (actual.token_id, actual.rank, actual.top_ids) == (expected.token_id, expected.rank, expected.top_ids)
        assert actual.logprob == pytest.approx(expected.logprob, abs=LOGPROB_TOLERANCE)
        assert actual.top_logprobs == pytest.approx(expected.top_logprobs, abs=LOGPROB_TOLERANCE)
