"""The arrays of one step: what a program's body and head are given, and what sampling gives back.

Plain numpy arrays, C-contiguous, of exactly the dtypes given here. `ops.STEP_INPUTS` lists the body's by name; native
code checks every bound once per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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


def no_state_saves() -> Int32Array:
    """Return the saves of a step that leaves no snapshot."""
    return np.zeros((0, 4), np.int32)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The rows of one step, request by request.

    Shapes: T tokens, R requests.
    """

    token_ids: Int32Array
    """[T]"""
    positions: Int32Array
    """[T]"""
    query_start_loc: Int32Array
    """[R + 1] rows [query_start_loc[r], query_start_loc[r + 1]) are request r's; the last is T."""
    seq_lens: Int32Array
    """[R] tokens including this step's."""
    block_tables: Sequence[Int32Array]
    """Per cache group [R, blocks]; only entries of visible positions are read. Of a state group [R, 1]: the slot."""
    slot_mapping: Sequence[Int64Array]
    """Per cache group [T]: block * block_size + offset, or -1: not written. Of a state group: empty."""
    state_saves: Int32Array = field(default_factory=no_state_saves)
    """[S, 4] request, group, position, slot: see `core.step.StateSave`."""


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Logit rows, and how the token of each is chosen.

    Shapes: N logit rows, A masks.
    """

    rows: Int32Array
    """[N] rows of the body's last run; a row may repeat."""
    temperature: Float32Array
    """[N] 0: greedy."""
    top_k: Int32Array
    """[N] 0: off."""
    top_p: Float32Array
    """[N] 1: off."""
    min_p: Float32Array
    """[N] 0: off."""
    seed: npt.NDArray[np.uint64]
    """[N]"""
    position: Int64Array
    """[N] of the token to be sampled."""
    num_logprobs: Int32Array
    """[N] -1: none; 0: the chosen token only; k: and the top k."""
    forced_token: Int32Array
    """[N] -1: sample; else the token is given and only scored."""
    edit_offsets: Int64Array
    """[N + 1] edits [edit_offsets[n], edit_offsets[n + 1]) are row n's."""
    edits: npt.NDArray[np.void]
    """`EDIT_DTYPE`."""
    allowed_rows: Int32Array
    """[N] row of `allowed`, or -1: all tokens are allowed."""
    allowed: npt.NDArray[np.uint32]
    """[A, ceil(V / 32)] one bit per token, the lowest first."""


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """What was chosen.

    Shapes: N logit rows, k the largest `num_logprobs` of the batch.
    """

    token_ids: Int32Array
    """[N]"""
    status: Int32Array
    """[N] 0: ok; 1: the logits are not finite, or no token is allowed, and the other entries mean nothing."""
    rank: Int32Array
    """[N] 1-based rank of the token; with the logprobs below, only where the row asked for logprobs."""
    logprob: Float32Array
    """[N] of the token."""
    top_ids: Int32Array
    """[N, k] the first `num_logprobs` of a row: logprob descending, id ascending."""
    top_logprobs: Float32Array
    """[N, k]"""
    native_seconds: float = 0.0
