"""The messages between the control plane and the data plane: ints and arrays, read-only by convention.

`SchedulerOutput` goes down, `ModelRunnerOutput` comes up, `EngineCoreOutput` goes out. The data plane keeps,
per *seat* (0 .. max_num_seqs - 1), the token ids, block tables and sampling state of the request that holds it;
a `SchedulerOutput` carries only what changed, and the rows to compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from octavo.pooling_params import PoolingType
    from octavo.sampling_params import SamplingParams

    Int32Array = NDArray[np.int32]
    Float64Array = NDArray[np.float64]

FinishReason = Literal["stop", "length", "abort", "error"]
Fault = str | Exception
"""Why a request ends with "error": a reason, or what was raised."""


class NonFiniteError(Exception):
    """Why a request ends for which the model has computed numbers that are not finite."""


@dataclass(frozen=True, slots=True)
class SeatAssignment:
    """A request takes a seat: everything the data plane must know about it, sent once.

    After a preemption the request takes a seat again, with its output so far in `token_ids`.
    """

    seat: int
    request_id: str
    token_ids: list[int]
    """Prompt followed by the output so far."""
    prompt_len: int
    params: SamplingParams
    seed: int
    """Resolved: never None. Randomness is Philox keyed by (seed, token position)."""
    block_ids: tuple[list[int], ...]
    """Per cache group, the block table so far; a block that was left behind by a window is -1. The table of a state
    group is one entry: the request's slot."""
    pooling: PoolingType | None = None
    """Nothing is sampled: the hidden states of all its rows, or of its prompt's last, are added up."""


@dataclass(frozen=True, slots=True)
class BlockAppend:
    """Blocks that a seated request gained in this plan, at the end of its table of one group."""

    seat: int
    group: int
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class BlockReplace:
    """One entry of a seated request's table changes: copy on write, or -1 when a window left the block behind."""

    seat: int
    group: int
    index: int
    block_id: int


@dataclass(frozen=True, slots=True)
class Move:
    """One piece of cache bookkeeping, done in list order before the body runs."""

    kind: Literal["copy_block", "clear_state", "restore_state", "copy_state"]
    """`copy_block`: all of a block. `clear_state`: a slot that starts from nothing. `restore_state`: a slot
    from a snapshot, at the border where that was taken. `copy_state`: all of a slot, for a fork."""
    group: int
    source: int
    """-1 for `clear_state`."""
    target: int


@dataclass(frozen=True, slots=True)
class StateSave:
    """A snapshot to leave while a request's rows run: its state after `position` tokens, written to another slot."""

    request: int
    """Index into the plan's `seats`."""
    group: int
    position: int
    """A multiple of the block size, past `num_computed_tokens`, at most that plus `num_scheduled_tokens`."""
    slot: int


@dataclass(slots=True)
class SchedulerOutput:
    """One step: who runs, which of their tokens, where these go in the cache.

    Order of application by the data plane: released, assigned, replaced, appended, moves, then the rows. Where an array
    would equal that of the last plan, it may be the same object.

    Shapes:
        R requests scheduled, T = sum(num_scheduled_tokens) rows, N logit rows.
    """

    step_id: int
    released_seats: list[int]
    """Seats given up since the last plan. A seat may be released and assigned again in one plan, released though it
    holds nothing, and assigned though it was not released: the plan that would have told may have failed unread."""
    assigned: list[SeatAssignment]
    replaced: list[BlockReplace]
    appended: list[BlockAppend]
    moves: list[Move]

    seats: Int32Array
    """[R] seat of each scheduled request; decode rows first."""
    num_computed_tokens: Int32Array
    """[R] tokens whose KV is in the cache before this step: the position of the first row."""
    num_scheduled_tokens: Int32Array
    """[R] rows of this request in this step, at least 1."""

    logit_rows: Int32Array
    """[N] row of the flat batch (0 .. T - 1) whose logits are sampled; a row repeats at a fork."""
    logit_seats: Int32Array
    """[N] seat whose parameters sample that row, and which gets the token."""
    logit_positions: Int32Array
    """[N] position of the token to be sampled: the position of the row plus one."""

    prompt_logprob_rows: list[PromptLogprobRows] = field(default_factory=list)
    state_saves: list[StateSave] = field(default_factory=list)
    """In order of (request, position)."""


@dataclass(frozen=True, slots=True)
class PromptLogprobRows:
    """Rows of one request whose logits score the next prompt token.

    Row `first_row + i` of the flat batch scores the prompt token at position `first_position + i`, i < count.
    """

    seat: int
    first_row: int
    first_position: int
    count: int
    num_logprobs: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs of one logit row: the chosen token first, then the top k in order (logprob down, id up)."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """1-based rank of the chosen token."""
    scores: list[float] | None = None
    """Logprobs of the token ids that the request lists for this position, if it does."""


@dataclass(slots=True)
class ModelRunnerOutput:
    """What one step computed.

    Shapes:
        token_ids [N], in the order of the plan's logit rows.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    """[N]; None where the request asked for none."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """Per index into the plan's `prompt_logprob_rows`."""
    sums: list[Float64Array] = field(default_factory=list)
    """[E] each, of hidden states: of the pooled requests that this step takes to the end of their prompt, in order."""
    row_errors: dict[int, Fault] = field(default_factory=dict)
    """What means nothing (numbers that are not finite, a failing request), with the reason, by its index over logit
    rows, then entries of `prompt_logprobs`, then `sums`. Its request ends with `error`, the others go on."""
    step_seconds: float = 0.0
    """Wall time of the step, measured by the data plane: the control plane reads no clock."""
    native_seconds: float = 0.0
    """The part of `step_seconds` spent inside native code."""
    forward_seconds: float = 0.0
    """The part of `step_seconds` until `submit` was done; sampling is the rest."""


@dataclass(slots=True)
class EngineCoreOutput:
    """What one completion gained since its last output: in one step, or in many if it is not streamed."""

    request_id: str
    """Of the request as it was added; with n > 1 all its completions carry it."""
    index: int
    """Which of the n completions."""
    new_token_ids: list[int]
    new_logprobs: list[TokenLogprobs] | None = None
    hidden_sum: Float64Array | None = None
    """The only output of a request that is pooled."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Appended as the chunks of the prompt are computed."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: Fault | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    seed: int = 0
