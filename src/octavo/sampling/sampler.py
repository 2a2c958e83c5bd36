"""How each seat's request wants its tokens chosen, and from it the `SampleBatch` of a step.

The arithmetic is native code's; this file only says what to do with each logit row. A request without edits or mask is
a record in an array, and costs no Python of its own in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import GrammarError, OctavoError
from octavo.program.forward_batch import EDIT_DTYPE, AllowedTokens, SampleBatch, greedy_choices
from octavo.sampling.token_edits import TokenEdits, allowed_mask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.sampling_params import SamplingParams

    Int32Array = NDArray[np.int32]
    MaskArray = NDArray[np.uint32]

NO_LOGPROBS = -1
"""`num_logprobs` of a row whose logprobs nobody wants."""
ALL_ALLOWED = -1
"""`allowed_row` of a row without a mask."""


@dataclass(slots=True)
class SampledRows:
    """Logit rows that a token is drawn from.

    Shapes: all [N]; `masks` are of the rows that a grammar restricts, or None.
    """

    rows: Int32Array
    seats: Int32Array
    positions: Int32Array
    masks: AllowedTokens | None = None


@dataclass(slots=True)
class ScoredRows:
    """Logit rows whose token is known and only wants its logprobs. Shapes: all [P], but for the last."""

    rows: Int32Array
    token_ids: Int32Array
    num_logprobs: Int32Array
    score_ids: Sequence[Int32Array] = ()
    """Tokens to score beside it, -1 for none: together [P, any], equally many for the rows of one request."""


@dataclass(slots=True)
class _Gathered:
    """What the rows of the same seats have in common in every step. Shapes: N rows."""

    seats: Int32Array
    rows: Int32Array | None
    """Those that `choices` has now."""
    choices: NDArray[np.void]
    """[N] `CHOICE_DTYPE`; row, position, edits and mask are written anew in each step that needs it."""
    max_logprobs: int
    special_rows: list[int]
    """Rows with edits, a mask of their own or tokens to score, or that fail: the others cost no Python."""


class Sampler:
    """Sampling state of all seats."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._choices = greedy_choices([0] * max_num_seqs)
        """Per seat, how its tokens are chosen."""
        self._is_plain = np.ones(max_num_seqs, np.bool_)
        """No edits, no mask, no failure: the rows of this seat need nothing else."""
        self._gathered: _Gathered | None = None
        """That of the last rows, if no seat changed hands since."""
        self._requests: dict[int, tuple[SamplingParams, int]] = {}
        """Per seat that is not plain, its parameters and prompt length."""
        self._edits: dict[int, TokenEdits] = {}
        self._masks: dict[int, MaskArray] = {}
        self._prompt_scores: dict[int, tuple[Int32Array, int]] = {}
        """Per seat that lists token ids for prompt rows, these [rows, K], and the first of the rows."""
        self._failures: dict[int, str] = {}

    def assign(self, seat: int, params: SamplingParams, prompt_len: int, seed: int) -> None:
        """Take over a request's parameters. Never raises: what is wrong with them is told with its first row."""
        self.release(seat)
        try:
            choice = self._choices[seat]
            choice["temperature"] = params.temperature
            choice["top_k"] = params.top_k
            choice["top_p"] = params.top_p
            choice["min_p"] = params.min_p
            choice["seed"] = seed & 0xFFFF_FFFF_FFFF_FFFF
            lists_ids = params.logprob_token_ids is not None
            choice["num_logprobs"] = 0 if lists_ids else self.resolve_num_logprobs(params.logprobs)
            is_restricted = params.allowed_token_ids is not None or TokenEdits.needed(params)
            self._is_plain[seat] = not (is_restricted or lists_ids)
            if not self._is_plain[seat]:
                self._requests[seat] = (params, prompt_len)
            if params.prompt_logprob_token_ids is not None:
                ids = np.array(params.prompt_logprob_token_ids, np.int32)
                self._prompt_scores[seat] = (ids, params.prompt_logprob_start or 0)
        except Exception as error:
            self.release(seat)
            self._is_plain[seat] = False
            self._failures[seat] = _reason(error)

    def release(self, seat: int) -> None:
        """Forget a request; its seat becomes a greedy one without edits."""
        self._gathered = None
        self._choices[seat] = greedy_choices(0)
        self._is_plain[seat] = True
        for table in (self._requests, self._edits, self._masks, self._prompt_scores, self._failures):
            table.pop(seat, None)

    def resolve_num_logprobs(self, requested: int | None) -> int:
        """Return how many best tokens to report besides the chosen one: `requested`, where -1 means all."""
        if requested is None:
            return NO_LOGPROBS
        return self._vocab_size if requested < 0 else min(requested, self._vocab_size)

    def prompt_score_ids(self, seat: int, first_position: int, count: int) -> Int32Array:
        """Return the ids that a request lists for its prompt tokens from a position on: [count, K], -1 is none."""
        if seat not in self._prompt_scores:
            return np.empty((count, 0), np.int32)
        listed, start = self._prompt_scores[seat]
        ids = np.full((count, listed.shape[1]), -1, np.int32)
        first = first_position - 1 - start  # the row of the list for the first position: the row before predicts it
        skipped = max(0, -first)
        own = listed[first + skipped : first + count] if first + count > 0 else listed[:0]
        ids[skipped : skipped + len(own)] = own
        return ids

    def build(
        self, sampled: SampledRows, token_ids: NDArray[np.int32], scored: ScoredRows | None = None
    ) -> tuple[SampleBatch, dict[int, str | Exception]]:
        """Return the batch for a step's logit rows, sampled ones first, and the sampled rows that failed, with reasons.

        It is valid until the next one is built. A failed row stays in it, because the others keep their index; its
        token means nothing.

        Args:
            token_ids: [seats, max_model_len] prompt and output of each seat.
        """
        gathered = self._gathered
        if gathered is None or gathered.seats is not sampled.seats:
            gathered = self._gathered = self._gather(sampled.seats)
        choices = gathered.choices
        if gathered.rows is not sampled.rows:
            gathered.rows = choices["row"] = sampled.rows
        choices["position"] = sampled.positions
        batch = SampleBatch(choices, gathered.max_logprobs)
        errors: dict[int, str | Exception] = {}
        if gathered.special_rows or sampled.masks is not None:
            errors = self._restrict(batch, gathered.special_rows, sampled, token_ids)
        return _with_scored(batch, scored) if scored is not None else batch, errors

    def _gather(self, seats: Int32Array) -> _Gathered:
        choices = self._choices[seats]
        special_rows = np.flatnonzero(~self._is_plain[seats]).tolist()
        return _Gathered(seats, None, choices, int(choices["num_logprobs"].max(initial=NO_LOGPROBS)), special_rows)

    def _restrict(
        self, batch: SampleBatch, special_rows: list[int], sampled: SampledRows, token_ids: NDArray[np.int32]
    ) -> dict[int, str | Exception]:
        """Put edits and masks into the batch; return the rows that failed, with reasons."""
        choices = batch.choices
        pieces: list[bytes] = []
        masks: list[MaskArray] = []
        has_own_masks = False
        errors: dict[int, str | Exception] = {}
        num_edits = 0
        score_ids: list[int] = []
        choices["num_edits"] = choices["num_scores"] = 0
        choices["allowed_row"] = ALL_ALLOWED
        if sampled.masks is not None:
            choices["allowed_row"][sampled.masks.rows] = np.arange(len(sampled.masks.rows))
            batch.allowed = sampled.masks.bits
            masks = list(sampled.masks.bits)
            errors |= {row: GrammarError(reason) for row, reason in sampled.masks.failures.items()}
            self._gathered = None  # the next step may have no masks
        for row in special_rows:
            seat, position = int(sampled.seats[row]), int(sampled.positions[row])
            try:
                row_edits = self._edits_at(seat, position, token_ids)
                mask = self._mask(seat)
            except Exception as error:
                errors[row] = _reason(error)
                continue
            choices["first_edit"][row] = num_edits
            choices["num_edits"][row] = len(row_edits) // EDIT_DTYPE.itemsize
            num_edits += len(row_edits) // EDIT_DTYPE.itemsize
            pieces.append(row_edits)
            has_own_masks = has_own_masks or mask is not None
            listed = self._requests[seat][0].logprob_token_ids or ()
            choices["first_score"][row], choices["num_scores"][row] = len(score_ids), len(listed)
            score_ids += listed
            restricted = int(choices["allowed_row"][row])
            if mask is not None and restricted != ALL_ALLOWED:
                masks[restricted] = masks[restricted] & mask
            elif mask is not None:
                choices["allowed_row"][row] = len(masks)
                masks.append(mask)
        if num_edits:
            batch.edits = np.frombuffer(bytearray().join(pieces), EDIT_DTYPE)
        if has_own_masks:
            batch.allowed = np.stack(masks)
        if score_ids:
            batch.score_ids = np.array(score_ids, np.int32)
        return errors

    def _edits_at(self, seat: int, position: int, token_ids: NDArray[np.int32]) -> bytes:
        if seat in self._failures:
            raise OctavoError(self._failures[seat])
        params, prompt_len = self._requests[seat]
        if not TokenEdits.needed(params):
            return b""
        if seat not in self._edits:
            self._edits[seat] = TokenEdits(params, prompt_len, self._vocab_size)
        return self._edits[seat].at(token_ids[seat], position)

    def _mask(self, seat: int) -> MaskArray | None:
        params, _ = self._requests[seat]
        if params.allowed_token_ids is not None and seat not in self._masks:
            self._masks[seat] = allowed_mask(params.allowed_token_ids, self._vocab_size)
        return self._masks.get(seat)


def _with_scored(batch: SampleBatch, scored: ScoredRows) -> SampleBatch:
    """Return `batch` with the scored rows behind the others.

    They are reported as the model gave them, in every logprobs mode: at temperature 1, nothing cut.
    """
    choices = greedy_choices(scored.rows)
    choices["temperature"] = 1.0
    choices["forced_token"] = scored.token_ids
    choices["num_logprobs"] = scored.num_logprobs
    score_ids = [] if batch.score_ids is None else [batch.score_ids]
    if scored.score_ids:
        choices["num_scores"] = np.concatenate([np.full(len(ids), ids.shape[1]) for ids in scored.score_ids])
        choices["first_score"] = sum(map(len, score_ids)) + np.cumsum(choices["num_scores"]) - choices["num_scores"]
        score_ids += [ids.reshape(-1) for ids in scored.score_ids]
    return SampleBatch(
        np.concatenate([batch.choices, choices]),
        max(batch.max_logprobs, int(scored.num_logprobs.max())),
        batch.edits,
        batch.allowed,
        np.concatenate(score_ids) if score_ids else None,
    )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
