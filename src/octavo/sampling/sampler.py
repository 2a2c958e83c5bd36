"""How each seat's request wants its tokens chosen, and from it the `SampleBatch` of a step.

The arithmetic is native code's; this file only says what to do with each logit row. A greedy request without edits is a
handful of array entries, and costs no Python of its own in a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import OctavoError
from octavo.program.forward_batch import EDIT_DTYPE, SampleBatch
from octavo.sampling.token_edits import TokenEdits, allowed_mask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.sampling_params import SamplingParams

    Int32Array = NDArray[np.int32]
    MaskArray = NDArray[np.uint32]

NO_LOGPROBS = -1
"""`SampleBatch.num_logprobs` of a row whose logprobs nobody wants."""
NOT_FORCED = -1
"""`SampleBatch.forced_token` of a row that is sampled."""
ALL_ALLOWED = -1
"""`SampleBatch.allowed_rows` of a row without a mask."""


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Logit rows that a token is drawn from.

    Shapes: all [N]; `masks` are allowed-token bits [N, ceil(V / 32)] from a grammar, or None.
    """

    rows: Int32Array
    seats: Int32Array
    positions: Int32Array
    masks: MaskArray | None = None


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Logit rows whose token is known and only wants its logprobs. Shapes: all [P]."""

    rows: Int32Array
    token_ids: Int32Array
    num_logprobs: Int32Array


class Sampler:
    """Sampling state of all seats."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int32)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._num_logprobs = np.full(max_num_seqs, NO_LOGPROBS, np.int32)
        self._is_plain = np.ones(max_num_seqs, np.bool_)
        """No edits, no mask, no failure: the rows of this seat need nothing but the arrays above."""
        self._requests: dict[int, tuple[SamplingParams, int]] = {}
        """Per seat that is not plain, its parameters and prompt length."""
        self._edits: dict[int, TokenEdits] = {}
        self._masks: dict[int, MaskArray] = {}
        self._failures: dict[int, str] = {}

    def assign(self, seat: int, params: SamplingParams, prompt_len: int, seed: int) -> None:
        """Take over a request's parameters. Never raises: what is wrong with them is told with its first row."""
        self.release(seat)
        try:
            self._temperature[seat] = params.temperature
            self._top_k[seat] = params.top_k
            self._top_p[seat] = params.top_p
            self._min_p[seat] = params.min_p
            self._seed[seat] = seed & 0xFFFF_FFFF_FFFF_FFFF
            self._num_logprobs[seat] = self.resolve_num_logprobs(params.logprobs)
            self._is_plain[seat] = params.allowed_token_ids is None and not TokenEdits.needed(params)
            if not self._is_plain[seat]:
                self._requests[seat] = (params, prompt_len)
        except Exception as error:
            self.release(seat)
            self._is_plain[seat] = False
            self._failures[seat] = _reason(error)

    def release(self, seat: int) -> None:
        """Forget a request; its seat becomes a greedy one without edits."""
        self._temperature[seat] = 0.0
        self._top_k[seat] = 0
        self._top_p[seat] = 1.0
        self._min_p[seat] = 0.0
        self._num_logprobs[seat] = NO_LOGPROBS
        self._is_plain[seat] = True
        for table in (self._requests, self._edits, self._masks, self._failures):
            table.pop(seat, None)

    def resolve_num_logprobs(self, requested: int | None) -> int:
        """Return how many best tokens to report besides the chosen one: `requested`, where -1 means all."""
        if requested is None:
            return NO_LOGPROBS
        return self._vocab_size if requested < 0 else min(requested, self._vocab_size)

    def build(
        self, sampled: SampledRows, token_ids: NDArray[np.int32], scored: ScoredRows | None = None
    ) -> tuple[SampleBatch, dict[int, str]]:
        """Return the batch for a step's logit rows, sampled ones first, and the sampled rows that failed, with reasons.

        A failed row stays in the batch, because the others keep their index; its token means nothing.

        Args:
            token_ids: [seats, max_model_len] prompt and output of each seat.
        """
        seats = sampled.seats
        num_edits, edits, allowed_rows, allowed, errors = self._special_rows(sampled, token_ids)
        num_scored = 0 if scored is None else len(scored.rows)

        def column(values: NDArray[Any], scored_values: object) -> NDArray[Any]:
            if scored is None:
                return values
            return np.concatenate([values, np.broadcast_to(np.asarray(scored_values, values.dtype), num_scored)])

        batch = SampleBatch(
            rows=column(sampled.rows, scored and scored.rows),
            # A scored row is reported as the model gave it, in every logprobs mode: at temperature 1, nothing cut.
            temperature=column(self._temperature[seats], 1.0),
            top_k=column(self._top_k[seats], 0),
            top_p=column(self._top_p[seats], 1.0),
            min_p=column(self._min_p[seats], 0.0),
            seed=column(self._seed[seats], 0),
            position=column(sampled.positions.astype(np.int64), 0),
            num_logprobs=column(self._num_logprobs[seats], scored and scored.num_logprobs),
            forced_token=column(np.full(len(seats), NOT_FORCED, np.int32), scored and scored.token_ids),
            edit_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(column(num_edits, 0))]),
            edits=edits,
            allowed_rows=column(allowed_rows, ALL_ALLOWED),
            allowed=allowed,
        )
        return batch, errors

    def _special_rows(
        self, sampled: SampledRows, token_ids: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.void], Int32Array, MaskArray, dict[int, str]]:
        """Return edits per row, all edits, mask index per row, the masks, and what failed; Python only where needed."""
        num_rows = len(sampled.seats)
        num_edits = np.zeros(num_rows, np.int64)
        allowed_rows = np.full(num_rows, ALL_ALLOWED, np.int32)
        pieces: list[bytes] = []
        masks: list[MaskArray] = []
        errors: dict[int, str] = {}
        if sampled.masks is not None:
            allowed_rows = np.arange(num_rows, dtype=np.int32)
            masks = list(sampled.masks)
        for row in np.flatnonzero(~self._is_plain[sampled.seats]).tolist():
            seat, position = int(sampled.seats[row]), int(sampled.positions[row])
            try:
                row_edits = self._edits_at(seat, position, token_ids)
                mask = self._mask(seat)
            except Exception as error:
                errors[row] = _reason(error)
                continue
            num_edits[row] = len(row_edits) // EDIT_DTYPE.itemsize
            pieces.append(row_edits)
            if mask is not None and sampled.masks is not None:
                masks[row] = masks[row] & mask
            elif mask is not None:
                allowed_rows[row] = len(masks)
                masks.append(mask)
        edits = np.frombuffer(bytearray().join(pieces), EDIT_DTYPE) if pieces else np.empty(0, EDIT_DTYPE)
        allowed = np.stack(masks) if masks else np.empty((0, -(-self._vocab_size // 32)), np.uint32)
        return num_edits, edits, allowed_rows, allowed, errors

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


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
