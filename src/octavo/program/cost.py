"""What each op of a step must do at least: arithmetic, and bytes moved to and from memory. From the Program alone.

Sums and products are counted, and attention's as is usual: its two products without the softmax between them.
Bytes assume that a weight, an activation row and a cached token are read once per op. Measured times over these
numbers say how far an op is from the machine's limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.cache_spec import OPEN_CHUNK
from octavo.program.moe_ops import Moe, Route
from octavo.program.ops import (
    Add,
    CausalConv1d,
    Embedding,
    Gate,
    GatedDeltaRule,
    GatedMul,
    GatherRows,
    KvWrite,
    Linear,
    Mul,
    MulByGate,
    Op,
    PagedAttention,
    Program,
    RmsNorm,
    Rope,
    Scale,
    Softcap,
)

FLOAT_BYTES = 4
_PAIR_FLOPS = 6
"""To rotate two numbers: four products, two sums."""
_GATE_FLOPS: Mapping[Gate, int] = {"sigmoid": 3, "silu": 4, "gelu_tanh": 8}
"""For one number; an exponential or a hyperbolic tangent counts as one operation."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of one step.

    Shapes: R requests; T, the sum of query_lens; N logit rows.
    """

    query_lens: Sequence[int]
    """[R] rows of each request."""
    seq_lens: Sequence[int]
    """[R] tokens of each request, this step's included."""
    num_logit_rows: int

    def rows(self, op: Op) -> int:
        """Return how many rows the op computes: T or N."""
        value = (*op.outputs, *op.inputs)[0]
        return sum(self.query_lens) if value.rows == "T" else self.num_logit_rows


@dataclass(frozen=True, slots=True)
class OpCost:
    """The least that one op costs in one step."""

    op: Op
    flops: int
    """Floating-point or integer operations; a multiply-add counts as two."""
    bytes: int


def program_costs(
    program: Program, shape: StepShape, weight_bytes: Mapping[str, int], *, activation_bytes: int = FLOAT_BYTES
) -> list[OpCost]:
    """Return the cost of each op, body first.

    Args:
        weight_bytes: what each weight takes in memory, by name.
        activation_bytes: what a number of a row takes.
    """
    ops = (*program.body, *program.head)
    return [_op_cost(op, program, shape, weight_bytes, activation_bytes) for op in ops]


def _op_cost(
    op: Op, program: Program, shape: StepShape, weight_bytes: Mapping[str, int], activation_bytes: int
) -> OpCost:
    rows = shape.rows(op)
    moved = activation_bytes * rows * sum(value.width for value in (*op.inputs, *op.outputs))
    match op:
        case Embedding():
            (table,) = op.weights
            return OpCost(
                op,
                0 if op.scale == 1.0 else rows * table.shape[1],
                moved + rows * weight_bytes[table.name] // table.shape[0],
            )
        case KvWrite():
            group = op.cache.attention_group(program.cache_groups)
            return OpCost(op, 0, moved + rows * 2 * group.num_kv_heads * group.vector_bytes)
        case PagedAttention():
            return _attention_cost(op, program, shape, moved)
        case CausalConv1d():
            state = op.cache.state_group(program.cache_groups)
            flops = 2 * rows * state.conv_width * state.conv_channels
            moved += 2 * FLOAT_BYTES * state.conv_floats * len(shape.query_lens)
        case GatedDeltaRule():
            flops, state_bytes = _delta_cost(op, program, shape)
            moved += state_bytes
        case Linear():
            flops = 2 * rows * op.weight.shape[0] * op.weight.shape[1]
        case Route():
            flops = 2 * rows * op.weights[0].shape[0] * op.weights[0].shape[1]
        case Moe():
            return _moe_cost(op, rows, moved, weight_bytes)
        case Rope():
            flops = rows * sum(value.width // op.head_dim for value in op.inputs) * op.table.half * _PAIR_FLOPS
        case _:
            flops = rows * op.outputs[0].width * _flops_per_value(op)
    return OpCost(op, flops, moved + sum(weight_bytes[weight.name] for weight in op.weights))


def _flops_per_value(op: Op) -> int:
    """Count what an op whose values are independent does for each one that it makes."""
    match op:
        case RmsNorm():
            return 4  # square, add up, scale, weight
        case GatedMul() | MulByGate():
            return _GATE_FLOPS[op.gate] + 1
        case Softcap():
            return 3
        case Add() | Mul() | Scale():
            return 1
        case GatherRows():
            return 0
        case _:
            raise NotImplementedError(f"the cost model has no {op.kind}")


def _attention_cost(op: PagedAttention, program: Program, shape: StepShape, moved: int) -> OpCost:
    """Count pairs of a query and a position it sees, and the cached tokens that a request's queries see together."""
    group = op.cache.attention_group(program.cache_groups)
    pairs = tokens = 0
    for query_len, seq_len in zip(shape.query_lens, shape.seq_lens, strict=True):
        first = seq_len - query_len
        pairs += _num_pairs(seq_len, op.window) - _num_pairs(first, op.window)
        tokens += _num_visible(first, op.window) + query_len - 1
    token_bytes = 2 * group.num_kv_heads * group.vector_bytes
    return OpCost(op, 4 * pairs * op.num_heads * group.head_dim, moved + tokens * token_bytes)


def _delta_cost(op: GatedDeltaRule, program: Program, shape: StepShape) -> tuple[int, int]:
    """Count operations, and bytes of the slots: S is read once, and written if rows are folded into it."""
    group = op.cache.state_group(program.cache_groups)
    state = group.num_value_heads * group.key_dim * group.value_dim
    keys, values = group.num_key_heads * group.key_dim, group.num_value_heads * group.value_dim
    flops = floats = 0
    for query_len, seq_len in zip(shape.query_lens, shape.seq_lens, strict=True):
        start = seq_len - query_len
        num_folds = seq_len // OPEN_CHUNK - start // OPEN_CHUNK
        seen = sum(position % OPEN_CHUNK + 1 for position in range(start, seq_len))
        flops += query_len * 4 * state + seen * 4 * (keys + values) + num_folds * 2 * OPEN_CHUNK * state
        kept = query_len if num_folds == 0 else seq_len % OPEN_CHUNK
        floats += state * (2 if num_folds else 1) + (start % OPEN_CHUNK + kept) * (keys + values)
    return flops, FLOAT_BYTES * floats


def _moe_cost(op: Moe, rows: int, moved: int, weight_bytes: Mapping[str, int]) -> OpCost:
    """Count each active expert once: as many as are expected to be, if every expert is as likely as any other."""
    share = 1 - (1 - op.top_k / op.num_experts) ** rows
    expert_values = sum(weight.shape[0] * weight.shape[1] for weight in op.weights) // op.num_experts
    weights = share * sum(weight_bytes[weight.name] for weight in op.weights)
    return OpCost(op, 2 * rows * op.top_k * expert_values, moved + round(weights))


def _num_visible(position: int, window: int | None) -> int:
    """Return how many positions a query sees, its own included."""
    return position + 1 if window is None else min(position + 1, window)


def _num_pairs(num_positions: int, window: int | None) -> int:
    """Return how many positions the first `num_positions` queries see together."""
    growing = num_positions if window is None else min(num_positions, window)
    return growing * (growing + 1) // 2 + (num_positions - growing) * (window or 0)
