"""Edit lists of single rows against the dense numpy oracle."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import RequestError
from octavo.program.forward_batch import EDIT_DTYPE
from octavo.sampling import reference
from octavo.sampling.token_edits import TokenEdits, allowed_mask
from octavo.sampling_params import SamplingParams

VOCAB = 50


def make_params(
    bad_words: list[list[int]] | None = None, eos: tuple[int, ...] = (), **values: object
) -> SamplingParams:
    params = SamplingParams(**values)
    params.bad_words_token_ids = bad_words or []
    params.eos_token_ids = frozenset(eos)
    return params


def apply_edits(logits: np.ndarray, edits: bytes) -> np.ndarray:
    """Do what `LogitEdit` in csrc/cpu/sampler.h documents."""
    x = logits.astype(np.float64)
    for token_id, bias, repetition, penalty in np.frombuffer(edits, EDIT_DTYPE).tolist():
        value = x[token_id] + bias
        x[token_id] = (value / repetition if value > 0 else value * repetition) - penalty
    return x


def banned(edits: TokenEdits, token_ids: list[int], position: int) -> set[int]:
    x = apply_edits(np.zeros(VOCAB, np.float32), edits.at(np.array(token_ids, np.int32), position))
    return set(np.flatnonzero(np.isneginf(x)).tolist())


CASES = {
    "logit bias": make_params(logit_bias={3: 4.5, 0: -2.0, 49: 100.0}),
    "repetition penalty": make_params(repetition_penalty=1.7),
    "repetition below one": make_params(repetition_penalty=0.6),
    "frequency and presence": make_params(frequency_penalty=0.7, presence_penalty=-0.4),
    "min_tokens": make_params(min_tokens=4, stop_token_ids=[9, 11], eos=(2,)),
    "min_tokens with ignore_eos": make_params(min_tokens=4, ignore_eos=True, eos=(2,)),
    "bad words": make_params(bad_words=[[5], [7, 8], [1, 2, 3], [2, 3]]),
    "everything": make_params(
        bad_words=[[5], [7, 8], [1, 2, 3]],
        eos=(2,),
        logit_bias={5: 9.0, 7: -3.0},
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        min_tokens=6,
        stop_token_ids=[11],
    ),
}


@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("prompt_len", [1, 6])
def test_edits_equal_the_dense_oracle_at_every_position(params: SamplingParams, prompt_len: int) -> None:
    rng = np.random.default_rng(prompt_len)
    token_ids = rng.integers(0, 12, 40).tolist()
    edits = TokenEdits(params, prompt_len, VOCAB)
    for position in range(prompt_len, len(token_ids) + 1):
        logits = rng.normal(0, 4, VOCAB).astype(np.float32)
        expected = reference.process_logits(logits, params, prompt_len, token_ids[:position])
        actual = apply_edits(logits, edits.at(np.array(token_ids, np.int32), position))
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_a_recomputed_row_gets_the_bytes_of_the_first_time() -> None:
    params = CASES["everything"]
    token_ids = np.random.default_rng(3).integers(0, 12, 30).astype(np.int32)
    grown = TokenEdits(params, 5, VOCAB)
    for position in range(5, 30):
        stepwise = np.frombuffer(grown.at(token_ids, position), EDIT_DTYPE)
        at_once = np.frombuffer(TokenEdits(params, 5, VOCAB).at(token_ids, position), EDIT_DTYPE)
        # The order of tokens may differ; what happens to each token may not.
        assert np.sort(stepwise, order="token_id").tobytes() == np.sort(at_once, order="token_id").tobytes()


def test_going_back_to_an_earlier_position_forgets_what_came_after() -> None:
    token_ids = np.array([1, 2, 3, 3, 3, 4], np.int32)
    edits = TokenEdits(make_params(frequency_penalty=1.0, repetition_penalty=1.5), 2, VOCAB)
    first = edits.at(token_ids, 3)
    edits.at(token_ids, 6)
    assert edits.at(token_ids, 3) == first


def test_bad_words_look_at_the_output_only() -> None:
    edits = TokenEdits(make_params(bad_words=[[1, 2, 3]]), 2, VOCAB)
    assert banned(edits, [1, 2], 2) == set()
    assert banned(edits, [9, 1, 2], 3) == set()
    assert banned(edits, [9, 9, 1, 2], 4) == {3}


def test_ends_are_banned_until_min_tokens() -> None:
    edits = TokenEdits(make_params(min_tokens=2, eos=(2, 4), stop_token_ids=[7]), 1, VOCAB)
    assert banned(edits, [1, 1, 1], 1) == {2, 4, 7}
    assert banned(edits, [1, 1, 1], 2) == {2, 4, 7}
    assert banned(edits, [1, 1, 1], 3) == set()


def test_end_tokens_beyond_the_logits_need_no_ban() -> None:
    edits = TokenEdits(make_params(min_tokens=1, eos=(2, VOCAB)), 1, VOCAB)
    assert banned(edits, [1], 1) == {2}


def test_a_bias_beyond_the_logits_is_refused_with_the_width() -> None:
    with pytest.raises(RequestError, match="50 wide"):
        TokenEdits(make_params(logit_bias={VOCAB: 1.0}), 1, VOCAB)


def test_plain_parameters_need_no_edits() -> None:
    assert not TokenEdits.needed(make_params(temperature=0.7, top_p=0.9, top_k=5, logprobs=3, eos=(2,)))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100])
def test_mask_has_one_bit_per_allowed_token(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    allowed = sorted(set(rng.integers(0, vocab_size, 10).tolist()))
    mask = allowed_mask(allowed, vocab_size)
    assert mask.dtype == np.uint32
    assert len(mask) == -(-vocab_size // 32)
    assert [i for i in range(32 * len(mask)) if mask[i // 32] >> (i % 32) & 1] == allowed


def test_a_mask_beyond_the_logits_is_refused() -> None:
    with pytest.raises(RequestError, match="allowed_token_ids has token id 33"):
        allowed_mask([1, 33], 33)
