"""The merge list tokenises by SentencePiece's own rule: join the adjacent pair whose result scores best."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from octavo.tokenizer.spm_merges import spm_merges


def tokenise_by_the_rule(text: str, scores: dict[str, float]) -> list[str]:
    pieces = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        _, i = min(pairs)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def make_vocabulary(rng: np.random.Generator, alphabet: str, num_tokens: int, max_length: int) -> list[str]:
    tokens = set(alphabet)
    while len(tokens) < num_tokens:
        tokens.add("".join(rng.choice(list(alphabet), rng.integers(2, max_length + 1))))
    return list(rng.permutation(sorted(tokens)))


@pytest.mark.parametrize("seed", range(12))
def test_random_vocabularies_tokenise_by_the_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = make_vocabulary(rng, "abc▁"[: 2 + seed % 3], [12, 40, 90][seed % 3], [3, 5, 7][seed % 3])
    values = rng.permutation(len(tokens)).astype(np.float32)
    merges = spm_merges(tokens, values, np.ones(len(tokens), dtype=np.bool_))
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    scores = dict(zip(tokens, values.tolist(), strict=True))
    alphabet = [token for token in tokens if len(token) == 1]
    for _ in range(300):
        text = "".join(rng.choice(alphabet, rng.integers(1, 24)))
        assert tokenizer.encode(text).tokens == tokenise_by_the_rule(text, scores)


def test_each_token_has_one_merge_and_unreachable_ones_have_none() -> None:
    tokens = ["a", "b", "c", "ab", "bc", "abc", "zz"]
    scores = np.array([0, 0, 0, -1, -2, -3, -4], dtype=np.float32)
    assert spm_merges(tokens, scores, np.ones(7, dtype=np.bool_)) == ["a b", "b c", "ab c"]


def test_tokens_that_cannot_be_joined_get_no_merge() -> None:
    tokens = ["a", "b", "ab", "aba"]
    can_join = np.array([True, True, False, True])
    assert spm_merges(tokens, np.zeros(4, dtype=np.float32), can_join) == []
