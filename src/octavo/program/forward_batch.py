"""The arrays of one step: what a program's body and head are given, and what sampling gives back.

Plain numpy arrays, C-contiguous, of exactly the dtypes given here, read-only by convention, and valid for one step.
Native code checks every bound once per call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

EDIT_DTYPE = np.dtype(
    [("token_id", np.int32), ("bias", np.float32), ("repetition", np.float32), ("penalty", np.float32)]
)
"""One change of one logit, in this order: x += bias; x = x / repetition if x > 0 else x * repetition; x -= penalty.
A bias of -inf bans the token; repetition 1 and penalty 0 change nothing."""

CHOICE_DTYPE = np.dtype(
    [
        ("row", np.int32),
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("num_logprobs", np.int32),
        ("seed", np.uint64),
        ("position", np.int64),
        ("forced_token", np.int32),
        ("allowed_row", np.int32),
        ("first_edit", np.int32),
        ("num_edits", np.int32),
        ("first_score", np.int32),
        ("num_scores", np.int32),
    ]
)
"""A logit row and how its token is chosen.

`row` is one of the body's last run, and may repeat. Off are: temperature 0 (greedy), top_k 0, top_p 1, min_p 0,
num_logprobs -1 (0 is the chosen token only, k the top k too), forced_token -1 (else the token is given and only
scored), allowed_row -1 (else the row of `SampleBatch.allowed`). `position` is that of the token to be sampled. Its
edits are the `num_edits` from `first_edit` on; the tokens to score beside all these, if `num_logprobs` is not -1, the
`num_scores` from `first_score` on."""
_GREEDY = np.array((0, 0.0, 0, 1.0, 0.0, -1, 0, 0, -1, -1, 0, 0, 0, 0), CHOICE_DTYPE)

RESULT_DTYPE = np.dtype([("token_id", np.int32), ("status", np.int32), ("rank", np.int32), ("logprob", np.float32)])
"""The token of a logit row. Status 0: ok; 1: the logits are not finite; 2: its mask and edits leave no token. But for
status 0 the rest means nothing. 1-based rank and logprob of the token only where logprobs are asked for."""


@dataclass(frozen=True, slots=True)
class SeatTables:
    """What is known of each seat. The arrays are the same as long as there are seats; what they hold changes.

    Shapes: S seats.
    """

    token_ids: Int32Array
    """[S, longest] prompt, then output."""
    blocks: tuple[Int32Array, ...]
    """Per cache group [S, blocks of the longest]; only entries of visible positions are read. A state group has one
    column, the slot."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The rows of one step: request by request, of each the tokens after those that were computed, in order.

    Native code takes the fields as they are; what follows from them is here for those who look: the oracle and tests.
    Shapes: R requests; T rows.
    """

    tables: SeatTables
    seats: Int32Array
    """[R]"""
    num_computed_tokens: Int32Array
    """[R]"""
    num_scheduled_tokens: Int32Array
    """[R] rows of each, at least 1."""
    state_saves: Int32Array | None = None
    """[any, 4] request, group, position, slot: see `core.step.StateSave`."""

    @property
    def query_start_loc(self) -> Int32Array:
        """[R + 1] rows [query_start_loc[r], query_start_loc[r + 1]) are request r's; the last is T."""
        return np.concatenate([[0], np.cumsum(self.num_scheduled_tokens)]).astype(np.int32)

    @property
    def seq_lens(self) -> Int32Array:
        """[R] tokens including this step's."""
        return self.num_computed_tokens + self.num_scheduled_tokens

    @property
    def positions(self) -> Int32Array:
        """[T]"""
        firsts = self.num_computed_tokens - self.query_start_loc[:-1]
        return np.arange(self.num_rows, dtype=np.int32) + firsts[self._requests]

    @property
    def token_ids(self) -> Int32Array:
        """[T]"""
        return self.tables.token_ids[self.seats[self._requests], self.positions]

    @property
    def num_rows(self) -> int:
        """T."""
        return int(self.num_scheduled_tokens.sum())

    def block_table(self, group: int, request: int) -> Int32Array:
        """Return the ids of the blocks of one request, or of its slot."""
        table: Int32Array = self.tables.blocks[group][self.seats[request]]
        return table

    def slots(self, group: int, block_size: int) -> Int64Array:
        """Return where the keys and values of each row go [T]: block * block_size + offset."""
        blocks, offsets = np.divmod(self.positions, block_size)
        return self.tables.blocks[group][self.seats[self._requests], blocks].astype(np.int64) * block_size + offsets

    @property
    def _requests(self) -> Int64Array:
        """[T] whose row it is."""
        return np.repeat(np.arange(len(self.seats)), self.num_scheduled_tokens)


@dataclass(slots=True)
class AllowedTokens:
    """Which tokens the grammars of a step's logit rows allow.

    Shapes: A of the rows have a grammar.
    """

    rows: Int32Array
    """[A]"""
    bits: npt.NDArray[np.uint32]
    """[A, ceil(V / 32)] one bit per token, the lowest first."""
    failures: dict[int, str]
    """Rows whose grammar allows nothing, with the reason."""


@dataclass(slots=True)
class SampleBatch:
    """Logit rows, and how the token of each is chosen.

    Shapes: N logit rows, M edits, A masks, S tokens to score. None where there are none.
    """

    choices: npt.NDArray[np.void]
    """[N] `CHOICE_DTYPE`."""
    max_logprobs: int
    """The largest `num_logprobs`, at least -1."""
    edits: npt.NDArray[np.void] | None = None
    """[M] `EDIT_DTYPE`."""
    allowed: npt.NDArray[np.uint32] | None = None
    """[A, ceil(V / 32)] one bit per token, the lowest first."""
    score_ids: Int32Array | None = None
    """[S] tokens to score; -1 is none, and scores -inf."""


@dataclass(slots=True)
class SampleOutput:
    """What was chosen.

    Shapes: N logit rows, k the largest `num_logprobs` of the batch, S tokens to score. None where nobody asked.
    """

    results: npt.NDArray[np.void]
    """[N] `RESULT_DTYPE`."""
    top_ids: Int32Array | None = None
    """[N, k] the first `num_logprobs` of a row: logprob descending, id ascending."""
    top_logprobs: Float32Array | None = None
    """[N, k]"""
    scores: Float32Array | None = None
    """[S]"""
    native_seconds: float = 0.0


def greedy_choices(rows: npt.ArrayLike) -> npt.NDArray[np.void]:
    """Return the choice of the most probable token for each of these rows."""
    choices = np.full(np.shape(rows), _GREEDY)
    choices["row"] = rows
    return choices
