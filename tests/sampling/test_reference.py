"""The sampler's oracle against hand-made cases, numbers from elsewhere, and counts."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.sampling import reference
from octavo.sampling_params import SamplingParams


def make_logits(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities))


def test_philox_equals_the_published_known_answers() -> None:
    # Random123 kat_vectors, philox4x32 10 rounds: counter and key all zero, first word 0x6627e8d5.
    assert reference.philox_uniform(0, 0, 0) == 0x6627E8D5 / 2**32


def test_top_k_keeps_the_smaller_id_of_equal_logits() -> None:
    p = reference.probabilities(make_logits(0.2, 0.3, 0.3, 0.2), SamplingParams(top_k=3))
    assert np.flatnonzero(p).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, [1]), (0.6, [1, 3]), (0.8, [1, 3]), (0.9, [1, 2, 3])])
def test_top_p_keeps_the_token_that_reaches_it(top_p: float, kept: list[int]) -> None:
    p = reference.probabilities(make_logits(0.0625, 0.5, 0.125, 0.3125), SamplingParams(top_p=top_p))
    assert np.flatnonzero(p).tolist() == kept


def test_min_p_is_relative_to_the_largest_and_comes_after_temperature() -> None:
    logits = make_logits(0.6, 0.3, 0.1)
    assert np.count_nonzero(reference.probabilities(logits, SamplingParams(min_p=0.4))) == 2
    assert np.count_nonzero(reference.probabilities(logits, SamplingParams(min_p=0.4, temperature=0.5))) == 1


def test_draws_follow_the_distribution() -> None:
    logits = make_logits(0.05, 0.5, 0.15, 0.3).astype(np.float32)
    params = SamplingParams(seed=7)
    num_draws = 20_000
    counts = np.zeros(4)
    for position in range(num_draws):
        counts[reference.sample(logits, params, 1, [0], reference.philox_uniform(7, position, 0)).token_id] += 1
    expected = num_draws * np.exp(logits)
    # 99.9 % quantile of chi-square with 3 degrees of freedom.
    assert np.sum((counts - expected) ** 2 / expected) < 16.27


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = make_logits(0.1, 0.6, 0.3).astype(np.float32)
    params = SamplingParams(temperature=0, logit_bias={0: 10.0}, logprobs=2)
    result = reference.sample(logits, params, 1, [2], 0.0)
    assert (result.token_id, result.rank, result.top_ids) == (0, 3, [1, 2])
    np.testing.assert_allclose([result.logprob, *result.top_logprobs], np.log([0.1, 0.6, 0.3]), rtol=1e-6)
