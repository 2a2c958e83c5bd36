"""What each op of a step must do at least: arithmetic, and bytes moved to and from memory. From the Program alone.

Bytes assume that a weight, an activation row and a cached token are read once per op. Measured times over these
numbers say how far an op is from the machine's limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.cache_spec import CACHE_DTYPE_BYTES
from octavo.program.ops import CacheRef, Embedding, KvWrite, Linear, Op, PagedAttention, Program

_FLOAT_BYTES = 4


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


def program_costs(program: Program, shape: StepShape, weight_bytes: Mapping[str, int]) -> list[OpCost]:
    """Return the cost of each op, body first. `weight_bytes`: what each weight takes in memory, by name."""
    return [_op_cost(op, program, shape, weight_bytes) for op in (*program.body, *program.head)]


def _op_cost(op: Op, program: Program, shape: StepShape, weight_bytes: Mapping[str, int]) -> OpCost:
    rows = shape.rows(op)
    moved = _FLOAT_BYTES * rows * sum(value.width for value in (*op.inputs, *op.outputs))
    match op:
        case Embedding():
            (table,) = op.weights
            return OpCost(op, rows * table.shape[1], moved + rows * weight_bytes[table.name] // table.shape[0])
        case KvWrite():
            written = sum(value.width for value in op.inputs)
            return OpCost(op, 0, moved + rows * written * _cache_dtype_bytes(program, op.cache))
        case PagedAttention():
            return _attention_cost(op, program, shape, moved)
        case Linear():
            flops = 2 * rows * op.weight.shape[0] * op.weight.shape[1]
        case _:
            flops = rows * sum(value.width for value in op.outputs)
    return OpCost(op, flops, moved + sum(weight_bytes[weight.name] for weight in op.weights))


def _attention_cost(op: PagedAttention, program: Program, shape: StepShape, moved: int) -> OpCost:
    """Count pairs of a query and a position it sees, and the cached tokens that a request's queries see together."""
    group = program.attention_group(op.cache)
    pairs = tokens = 0
    for query_len, seq_len in zip(shape.query_lens, shape.seq_lens, strict=True):
        first = seq_len - query_len
        pairs += _num_pairs(seq_len, op.window) - _num_pairs(first, op.window)
        tokens += _num_visible(first, op.window) + query_len - 1
    token_bytes = 2 * group.num_kv_heads * group.head_dim * _cache_dtype_bytes(program, op.cache)
    return OpCost(op, 4 * pairs * op.num_heads * group.head_dim, moved + tokens * token_bytes)


def _cache_dtype_bytes(program: Program, cache: CacheRef) -> int:
    return CACHE_DTYPE_BYTES[program.attention_group(cache).dtype]


def _num_visible(position: int, window: int | None) -> int:
    """Return how many positions a query sees, its own included."""
    return position + 1 if window is None else min(position + 1, window)


def _num_pairs(num_positions: int, window: int | None) -> int:
    """Return how many positions the first `num_positions` queries see together."""
    growing = num_positions if window is None else min(num_positions, window)
    return growing * (growing + 1) // 2 + (num_positions - growing) * (window or 0)
