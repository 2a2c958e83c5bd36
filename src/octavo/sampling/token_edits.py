"""What one request's parameters do to single logits: a sparse list of edits per logit row.

A list depends on the request's prompt length and token ids alone, never on the steps that computed them, so a
recomputed row gets the same one. Counts are kept from row to row only to save work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import RequestError
from octavo.program.forward_batch import EDIT_DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from octavo.sampling_params import SamplingParams

    Int32Array = NDArray[np.int32]


class TokenEdits:
    """The edits of one request.

    The kernel applies a row's edits in list order, each as bias, then repetition, then penalty; so bans and biases come
    before penalties, which is vLLM's order.
    """

    def __init__(self, params: SamplingParams, prompt_len: int, vocab_size: int) -> None:
        self._prompt_len = prompt_len
        self._min_tokens = params.min_tokens if _bans_ends(params) else 0
        bad_words = [ids for ids in params.bad_words_token_ids if ids and ids[-1] < vocab_size]
        words = _bans({ids[0] for ids in bad_words if len(ids) == 1})
        self._always = words + _biases(params.logit_bias or {}, vocab_size)
        ends = params.eos_token_ids.union(params.stop_token_ids or ())
        self._end_bans = _bans(token_id for token_id in ends if token_id < vocab_size)
        self._phrases: dict[int, list[list[int]]] = {}
        for ids in bad_words:
            if len(ids) > 1:
                self._phrases.setdefault(ids[-2], []).append(ids)
        self._penalties = _Penalties(params, prompt_len) if _has_penalties(params) else None

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether any row of a request with these parameters can have an edit."""
        listed = params.logit_bias or params.bad_words_token_ids or _bans_ends(params)
        return bool(listed) or _has_penalties(params)

    def at(self, token_ids: Int32Array, position: int) -> bytes:
        """Return the edits of the row that samples the token at `position`: packed `EDIT_DTYPE` records.

        Args:
            token_ids: the request's prompt and output, at least `position` long.
        """
        pieces = [self._always]
        num_output_tokens = position - self._prompt_len
        if num_output_tokens < self._min_tokens:
            pieces.append(self._end_bans)
        if self._phrases and num_output_tokens > 0:
            pieces.append(_bans(self._phrase_ends(token_ids, position)))
        if self._penalties is not None:
            pieces.append(self._penalties.at(token_ids, position))
        return b"".join(pieces)

    def _phrase_ends(self, token_ids: Int32Array, position: int) -> set[int]:
        """Return the last token of each phrase whose other tokens are the end of the output."""
        ends = set()
        for ids in self._phrases.get(int(token_ids[position - 1]), ()):
            start = position - len(ids) + 1
            if start >= self._prompt_len and token_ids[start:position].tolist() == ids[:-1]:
                ends.add(ids[-1])
        return ends


class _Penalties:
    """Repetition, frequency and presence penalties: one edit per token seen, updated as the output grows."""

    def __init__(self, params: SamplingParams, prompt_len: int) -> None:
        self._repetition = params.repetition_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._prompt_len = prompt_len
        self._position = 0
        self._index: dict[int, int] = {}
        self._counts: list[int] = []
        self._edits: NDArray[np.void] = np.empty(0, EDIT_DTYPE)

    def at(self, token_ids: Int32Array, position: int) -> bytes:
        if position < self._position:
            self._forget()
        if self._position < self._prompt_len:
            self._see_prompt(token_ids[: self._prompt_len])
        for token_id in token_ids[self._position : position].tolist():
            self._see_output(token_id)
        self._position = position
        # Bytes, because numpy copies records field by field, ten times slower.
        return self._edits[: len(self._index)].tobytes()

    def _forget(self) -> None:
        self._position = 0
        self._index.clear()
        self._counts.clear()

    def _see_prompt(self, prompt: Int32Array) -> None:
        if self._repetition != 1.0:
            distinct = np.unique(prompt)
            self._edits = np.zeros(2 * len(distinct), EDIT_DTYPE)
            self._edits["token_id"][: len(distinct)] = distinct
            self._edits["repetition"] = self._repetition
            self._index = {token_id: index for index, token_id in enumerate(distinct.tolist())}
            self._counts = [0] * len(distinct)
        self._position = self._prompt_len

    def _see_output(self, token_id: int) -> None:
        index = self._index.setdefault(token_id, len(self._index))
        if index == len(self._counts):
            self._counts.append(0)
            if index == len(self._edits):
                self._edits = np.concatenate([self._edits, np.zeros(max(64, index), EDIT_DTYPE)])
        self._counts[index] += 1
        penalty = self._frequency * self._counts[index] + self._presence
        self._edits[index] = (token_id, 0.0, self._repetition, penalty)


def allowed_mask(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.uint32]:
    """Return the bits of `token_ids` in a mask of one bit per token of the vocabulary, 32 to a word.

    Raises: `RequestError` for an id beyond the vocabulary.
    """
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    for token_id in token_ids:
        _check(token_id, vocab_size, "allowed_token_ids")
        bits[token_id] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)


def _bans_ends(params: SamplingParams) -> bool:
    """Whether `min_tokens` bans tokens by edits; where there is a grammar, its masks do, so that it can still end."""
    return params.min_tokens > 0 and params.structured_outputs is None


def _has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def _biases(logit_bias: dict[int, float], vocab_size: int) -> bytes:
    for token_id in logit_bias:
        _check(token_id, vocab_size, "logit_bias")
    edits = np.zeros(len(logit_bias), EDIT_DTYPE)
    edits["token_id"] = list(logit_bias)
    edits["bias"] = list(logit_bias.values())
    edits["repetition"] = 1.0
    return edits.tobytes()


def _bans(token_ids: Iterable[int]) -> bytes:
    banned = sorted(token_ids)
    edits = np.zeros(len(banned), EDIT_DTYPE)
    edits["token_id"] = banned
    edits["bias"] = -np.inf
    edits["repetition"] = 1.0
    return edits.tobytes()


def _check(token_id: int, vocab_size: int, parameter: str) -> None:
    if not 0 <= token_id < vocab_size:
        raise RequestError(
            f"{parameter} has token id {token_id}, but the model's logits are {vocab_size} wide; leave it out.",
            parameter=parameter,
            value=token_id,
        )
