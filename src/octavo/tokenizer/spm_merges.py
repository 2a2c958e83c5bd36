"""Turns a SentencePiece vocabulary with scores into the shortest equivalent list of BPE merges.

SentencePiece joins, again and again, the adjacent pair of pieces whose *result* scores best. BPE does the
same from a ranked list of pairs. Listing every split of every token into two tokens would do, but most of these
pairs can never meet: nothing crosses the edges of a token's text before that token is formed, so inside
its text the joins happen as if the text stood alone. Hence exactly one pair forms each token: the last join when
its own text is tokenised. This file tokenises the text of all tokens at once, with array operations.

Strings are compared by 64-bit polynomial hashes of ranges of one flat array of code points. A file made to collide can
only spoil its own merges: each still spells its token, and the tokenizers library refuses parts that are no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
_Scalar = TypeVar("_Scalar", bound=np.generic)

_BASE = 0x9E3779B97F4A7C15
_BASE_INVERSE = pow(_BASE, -1, 1 << 64)
_NO_RANK = np.iinfo(np.int64).max
_MAX_LEVELS = 64
"""Tokens whose hashes are equal never part: without a limit they would be sent down for ever."""


def spm_merges(tokens: Sequence[str], scores: npt.NDArray[np.float32], can_join: npt.NDArray[np.bool_]) -> list[str]:
    """Return the merges as "left right", best first.

    Args:
        tokens: the vocabulary, all different.
        scores: one per token; the higher, the earlier it is joined. Ties go to the lower id.
        can_join: whether joining may produce the token.
    """
    rank = np.empty(len(tokens), dtype=np.int64)
    rank[np.argsort(-scores, kind="stable")] = np.arange(len(tokens))
    text = _FlatText(tokens)
    lookup = _RangeLookup(text, rank, can_join)
    last_split = _last_splits(text, lookup, np.flatnonzero(can_join & (text.lengths > 1)))
    formed = np.flatnonzero(last_split >= 0)
    formed = formed[np.argsort(rank[formed])]
    splits = zip(formed.tolist(), last_split[formed].tolist(), strict=True)
    return [f"{tokens[token_id][:split]} {tokens[token_id][split:]}" for token_id, split in splits]


class _FlatText:
    """All tokens as one array of code points; hashes of any range of it in constant time."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        code_points = np.frombuffer("".join(tokens).encode("utf-32-le"), dtype="<u4").astype(np.uint64)
        size = len(code_points) + 1
        powers = np.full(size, _BASE, dtype=np.uint64)
        powers[0] = 1
        np.cumprod(powers, out=powers)
        self._inverse_powers = np.full(size, _BASE_INVERSE, dtype=np.uint64)
        self._inverse_powers[0] = 1
        np.cumprod(self._inverse_powers, out=self._inverse_powers)
        self._prefix = np.zeros(size, dtype=np.uint64)
        np.cumsum((code_points + np.uint64(1)) * powers[:-1], out=self._prefix[1:])

    def hashes(self, begin: Ints, end: Ints) -> Hashes:
        """Hash the ranges [begin, end). Equal text has equal hashes, wherever it lies."""
        value: Hashes = (self._prefix[end] - self._prefix[begin]) * self._inverse_powers[begin]
        value ^= value >> np.uint64(32)  # multiplication leaves the low bits weak, and the tables index by them
        return value


class _RangeLookup:
    """Finds the token a range of the flat text spells: levels of direct-address tables, losers go one level down."""

    def __init__(self, text: _FlatText, rank: Ints, can_join: npt.NDArray[np.bool_]) -> None:
        self._text = text
        self._hashes = text.hashes(text.starts, text.starts + text.lengths)
        self._join_rank = np.where(can_join, rank, _NO_RANK)
        self._bits = len(rank).bit_length() + 1
        self._tables: list[npt.NDArray[np.int32]] = []
        left = np.arange(len(rank), dtype=np.int32)
        while len(left) and len(self._tables) < _MAX_LEVELS:
            table = np.full(1 << self._bits, -1, dtype=np.int32)
            slots = self._slots(self._hashes[left], len(self._tables))
            table[slots] = left
            self._tables.append(table)
            left = left[table[slots] != left]

    def _slots(self, hashes: Hashes, level: int) -> Ints:
        mixed = hashes if level == 0 else hashes * np.uint64(_BASE + 2 * level)
        slots: Ints = (mixed >> np.uint64(64 - self._bits)).astype(np.int64)
        return slots

    def token_ids(self, begin: Ints, end: Ints) -> Ints:
        """Return the id of the token each range spells, or -1."""
        hashes = self._text.hashes(begin, end)
        found = np.full(len(hashes), -1, dtype=np.int64)
        for level, table in enumerate(self._tables):
            candidates = table[self._slots(hashes, level)]
            is_hit = (candidates >= 0) & (self._hashes[candidates] == hashes)
            found[is_hit] = candidates[is_hit]
        return found

    def join_ranks(self, begin: Ints, end: Ints) -> Ints:
        """Return the rank at which the pieces that make up each range are joined, or _NO_RANK."""
        ids = self.token_ids(begin, end)
        return np.where(ids >= 0, self._join_rank[ids], _NO_RANK)


def _last_splits(text: _FlatText, lookup: _RangeLookup, ids: Ints) -> Ints:
    """Tokenise the text of each token in `ids`; return, by token id, where its last join happens.

    The answer is the length of the left piece, or -1 for a token that is never formed. Texts of one length go together.
    """
    splits = np.full(len(text.lengths), -1, dtype=np.int64)
    lengths = text.lengths[ids]
    for length in np.unique(lengths).tolist():
        rows = ids[lengths == length]
        formed, last = _join_rows(lookup, text.starts[rows], length)
        splits[rows[formed]] = last
    return splits


def _join_rows(lookup: _RangeLookup, starts: Ints, length: int) -> tuple[Ints, Ints]:
    """Join the characters of texts of one length down to two pieces.

    Shapes:
        starts    [B]  where each text starts
        returns   rows that got down to two pieces [F], length of their left piece [F]
    """
    rows = np.arange(len(starts))
    bounds = starts[:, None] + np.arange(length + 1)
    """[B, P + 1]: piece j of a row is the range [bounds[j], bounds[j + 1])."""
    is_token = lookup.token_ids(bounds[:, :-1].ravel(), bounds[:, 1:].ravel()).reshape(-1, length) >= 0
    ranks = lookup.join_ranks(bounds[:, :-2].ravel(), bounds[:, 2:].ravel()).reshape(-1, length - 1)
    """[B, P - 1]: the rank of joining piece j with the next."""
    ranks[~(is_token[:, :-1] & is_token[:, 1:])] = _NO_RANK
    for num_pieces in range(length, 2, -1):
        best = ranks.argmin(axis=1)
        alive = ranks[np.arange(len(ranks)), best] != _NO_RANK
        if not alive.all():
            rows, bounds, is_token, ranks, best = (array[alive] for array in (rows, bounds, is_token, ranks, best))
            if not len(rows):
                break
        bounds = _without(bounds, best + 1)
        is_token = _without(is_token, best)
        ranks = _without(ranks, best)
        is_token[np.arange(len(rows)), best] = True
        for neighbour in (best - 1, best):
            at = np.flatnonzero((neighbour >= 0) & (neighbour < num_pieces - 2))
            pair = neighbour[at]
            new_ranks = lookup.join_ranks(bounds[at, pair], bounds[at, pair + 2])
            ranks[at, pair] = np.where(is_token[at, pair] & is_token[at, pair + 1], new_ranks, _NO_RANK)
    formed = np.flatnonzero(ranks[:, 0] != _NO_RANK)
    return rows[formed], bounds[formed, 1] - bounds[formed, 0]


def _without(matrix: npt.NDArray[_Scalar], column: Ints) -> npt.NDArray[_Scalar]:
    """Remove one entry from each row: `column[i]` from row i."""
    keep = np.ones(matrix.shape, dtype=np.bool_)
    keep[np.arange(len(matrix)), column] = False
    return matrix[keep].reshape(len(matrix), -1)
