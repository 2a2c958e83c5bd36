"""The oracle: runs a Program with numpy in float32, one op at a time, slow and obvious.

What every other executor is compared with. Weights are the numbers of the model's file; the cache is a plain array
of numbers rounded to the cache's dtype. Shapes, letters and meaning of ops: `ops.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octavo.cache_spec import AttentionGroupSpec, CacheDtype
from octavo.program import reference_moe
from octavo.program.moe_ops import Moe, Route
from octavo.program.ops import (
    ACTIVATION_GROUP,
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
    Value,
    Weight,
)
from octavo.program.reference_delta import ReferenceStates, causal_conv1d, gated_delta_rule
from octavo.program.rope_table import build_rope_table

if TYPE_CHECKING:
    from octavo.program.forward_batch import ForwardBatch

Floats = npt.NDArray[np.float32]

FLOAT16_MAX = np.float32(65504)


@dataclass(frozen=True, slots=True)
class ReferenceWeights:
    """Float32 values by the name of each `WeightPart`."""

    values: Mapping[str, Floats]
    quantized: frozenset[str] = frozenset()
    """The parts whose products take int8 activations, if activations are quantised at all."""


class ReferenceCache:
    """Keys and values of one cache group: [blocks, layers, block_size, KVH, D]."""

    def __init__(self, spec: AttentionGroupSpec, num_blocks: int) -> None:
        shape = (num_blocks, spec.num_layers, spec.block_size, spec.num_kv_heads, spec.head_dim)
        self.spec = spec
        self.k = np.zeros(shape, dtype=np.float32)
        self.v = np.zeros(shape, dtype=np.float32)


class ReferenceExecutor:
    """A program with its weights and caches. The body of a step runs first, then head or pool for some of its rows."""

    def __init__(
        self,
        program: Program,
        weights: ReferenceWeights,
        num_blocks: Sequence[int],
        *,
        activation_quantization: bool = False,
    ) -> None:
        self.program = program
        self.caches: dict[int, ReferenceCache] = {}
        self.states: dict[int, ReferenceStates] = {}
        for group, (spec, num) in enumerate(zip(program.cache_groups, num_blocks, strict=True)):
            if isinstance(spec, AttentionGroupSpec):
                self.caches[group] = ReferenceCache(spec, num)
            else:
                self.states[group] = ReferenceStates(spec, num)
        self._weights = weights
        self._activation_quantization = activation_quantization
        self._rope_tables = {table.name: build_rope_table(table) for table in program.rope_tables}
        self._rows: dict[int, Floats] = {}

    def run_body(self, batch: ForwardBatch) -> Floats:
        """Compute a step's rows, write their keys and values, return `hidden` [T, E]."""
        self._rows = {}
        for op in self.program.body:
            self._run(op, batch)
        return self._read(self.program.hidden)

    def run_head(self, logit_rows: npt.NDArray[np.int32]) -> Floats:
        """Return the logits [N, V] of some rows of the last body."""
        self._run_entry(self.program.head, logit_rows)
        return self._read(self.program.logits)

    def run_pool(self, rows: npt.NDArray[np.int32]) -> Floats:
        """Return the final hidden states [N, E] of some rows of the last body.

        Raises: ValueError for a program that gives none.
        """
        if self.program.pooled is None:
            raise ValueError("the program has no pool")
        self._run_entry(self.program.pool, rows)
        return self._read(self.program.pooled)

    def _run_entry(self, ops: Sequence[Op], rows: npt.NDArray[np.int32]) -> None:
        for op in ops:
            if isinstance(op, GatherRows):
                self._write(op, self._read(op.inputs[0])[rows])
            else:
                self._run(op, None)

    def _run(self, op: Op, batch: Any) -> None:
        x = [self._read(value) for value in op.inputs]
        match op:
            case Embedding():
                self._write(op, self._vector(op.weights[0])[batch.token_ids] * np.float32(op.scale))
            case RmsNorm():
                self._write(op, rms_norm(x[0], self._vector(op.weights[0]), op.eps))
            case Linear():
                self._write(op, self._linear(op, x))
            case Rope():
                table = self._rope_tables[op.table.name][batch.positions]
                self._write(op, *(rope(y, table, op.head_dim, op.interleaved) for y in x))
            case KvWrite():
                cache = self.caches[op.cache.group]
                kv_write(cache, op.cache.layer, x[0], x[1], batch.slots(op.cache.group, cache.spec.block_size))
            case PagedAttention():
                self._write(op, paged_attention(op, x[0], self.caches[op.cache.group], batch))
            case CausalConv1d():
                taps = self._vector(op.weights[0])
                self._write(op, causal_conv1d(op, x[0], taps, self.states[op.cache.group], batch))
            case GatedDeltaRule():
                decay, dt_bias = map(self._vector, op.weights)
                self._write(op, gated_delta_rule(op, x, decay, dt_bias, self.states[op.cache.group], batch))
            case MulByGate():
                self._write(op, x[0] * gate(x[1], op.gate))
            case GatedMul():
                self._write(op, gated_mul(x[0], op.gate))
            case Add():
                self._write(op, x[0] + x[1])
            case Mul():
                self._write(op, x[0] * x[1])
            case Scale():
                self._write(op, x[0] * np.float32(op.factor))
            case Softcap():
                cap = np.float32(op.cap)
                self._write(op, cap * np.tanh(x[0] / cap))
            case Route():
                bias = None if op.choice_bias is None else self._vector(op.choice_bias)
                self._write(op, *reference_moe.route(x[0] @ self._vector(op.weights[0]).T, op.routing, bias))
            case Moe():
                self._write(op, self._moe(op, x))
            case _:
                raise NotImplementedError(f"the oracle has no {op.kind}")

    def _linear(self, op: Linear, x: list[Floats]) -> Floats:
        rows = x[0]
        quantized_rows = quantize_activations(rows) if self._activation_quantization else rows
        products = []
        for part in op.weight.parts:
            is_quantized = part.name in self._weights.quantized
            products.append((quantized_rows if is_quantized else rows) @ self._weights.values[part.name].T)
        y: Floats = np.concatenate(products, axis=1)
        if op.bias is not None:
            y = y + self._vector(op.bias)
        return y if op.add_to is None else y + x[1]

    def _moe(self, op: Moe, x: list[Floats]) -> Floats:
        """Run each row through its experts. Their products take int8 activations if all of them are quantised."""

        def product(rows: Floats, stack: Sequence[Weight], expert: int) -> Floats:
            names = [part.name for weight in stack for part in weight.parts]
            int8 = self._activation_quantization and self._weights.quantized.issuperset(names)
            y: Floats = (quantize_activations(rows) if int8 else rows) @ self._vector(stack[expert]).T
            return y

        def run_expert(row: Floats, expert: int) -> Floats:
            hidden = gated_mul(product(row[None], op.gate_up, expert), op.gate)
            y: Floats = product(hidden, op.down, expert)[0]
            return y

        y = reference_moe.weighted_sum(x[0], x[1], x[2], run_expert)
        return y if op.add_to is None else y + x[3]

    def _vector(self, weight: Weight) -> Floats:
        """Return the values of a weight, its parts stacked."""
        values: Floats = np.concatenate([self._weights.values[part.name] for part in weight.parts])
        return values

    def _read(self, value: Value) -> Floats:
        if value.base is None:
            return self._rows[value.id]
        return self._rows[value.base][:, value.column : value.column + value.width]

    def _write(self, op: Op, *outputs: Floats) -> None:
        for value, rows in zip(op.outputs, outputs, strict=True):
            self._rows[value.id] = rows


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Normalise each vector of `weight`'s length."""
    vectors = x.reshape(len(x), -1, len(weight))
    mean_square = np.mean(vectors * vectors, axis=2, keepdims=True)
    y: Floats = vectors / np.sqrt(mean_square + np.float32(eps)) * weight
    return y.reshape(x.shape)


def rope(x: Floats, table: Floats, head_dim: int, interleaved: bool) -> Floats:
    """Rotate the heads of x [T, heads * D] by the angles of each row: `table` is [T, cos | sin]."""
    half = table.shape[1] // 2
    cos, sin = table[:, None, :half], table[:, None, half:]
    y: Floats = x.reshape(len(x), -1, head_dim).copy()
    first = np.s_[..., 0 : 2 * half : 2] if interleaved else np.s_[..., :half]
    second = np.s_[..., 1 : 2 * half : 2] if interleaved else np.s_[..., half : 2 * half]
    a, b = y[first].copy(), y[second].copy()
    y[first] = a * cos - b * sin
    y[second] = b * cos + a * sin
    return y.reshape(x.shape)


def round_to_dtype(x: Floats, dtype: CacheDtype) -> Floats:
    """Round vectors [..., D] to what the cache stores, ties to even; float16 and int8 saturate."""
    if dtype in ("float16", "int8"):
        saturated: Floats = np.clip(x, -FLOAT16_MAX, FLOAT16_MAX)
        return round_to_int8(saturated) if dtype == "int8" else saturated.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(x).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
        values: Floats = (rounded & np.uint32(0xFFFF0000)).view(np.float32)
        return values
    return x


def round_to_int8(x: Floats) -> Floats:
    """Round each vector to int8 steps of max|x| / 127, in a basis where a few large elements are spread over all.

    The basis is the Walsh-Hadamard matrix of the largest power of two that divides D, for each block of that size.
    """
    block = x.shape[-1] & -x.shape[-1]
    hadamard = np.ones((1, 1), dtype=np.float32)
    while len(hadamard) < block:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    rotated = (x.reshape(*x.shape[:-1], -1, block) @ hadamard).reshape(x.shape)
    scale = np.abs(rotated).max(axis=-1, keepdims=True) / np.float32(127)
    steps = np.rint(np.divide(rotated, scale, out=np.zeros_like(rotated), where=scale > 0)) * scale
    rounded: Floats = (steps.reshape(*x.shape[:-1], -1, block) @ hadamard / np.float32(block)).reshape(x.shape)
    return rounded


def kv_write(cache: ReferenceCache, layer: int, k: Floats, v: Floats, slots: npt.NDArray[np.int64]) -> None:
    """Store each row at its slot."""
    spec = cache.spec
    block, offset = np.divmod(slots, spec.block_size)
    for target, source in ((cache.k, k), (cache.v, v)):
        heads = source.reshape(len(slots), spec.num_kv_heads, spec.head_dim)
        target[block, layer, offset] = round_to_dtype(heads, spec.dtype)


def paged_attention(op: PagedAttention, q: Floats, cache: ReferenceCache, batch: ForwardBatch) -> Floats:
    """Attend row by row, each over the positions it sees."""
    spec = cache.spec
    out = np.empty_like(q)
    starts = batch.query_start_loc.tolist()
    for request, seq_len in enumerate(batch.seq_lens.tolist()):
        begin, end = starts[request], starts[request + 1]
        table = batch.block_table(op.cache.group, request)
        for row in range(begin, end):
            position = seq_len - end + row
            first = 0 if op.window is None else max(0, position - op.window + 1)
            visible = np.arange(first, position + 1)
            block, offset = table[visible // spec.block_size], visible % spec.block_size
            k, v = cache.k[block, op.cache.layer, offset], cache.v[block, op.cache.layer, offset]
            heads = q[row].reshape(spec.num_kv_heads, -1, spec.head_dim)
            out[row] = attend(heads, k, v, op.scale, op.softcap).reshape(-1)
    return out


def attend(q: Floats, k: Floats, v: Floats, scale: float, softcap: float | None) -> Floats:
    """Softmax attention of one row: q [KVH, G, D], k and v [S, KVH, D] of the positions it sees."""
    scores = np.einsum("hgd,shd->hgs", q, k) * np.float32(scale)
    if softcap is not None:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    out: Floats = np.einsum("hgs,shd->hgd", weights, v)
    return out


def gated_mul(x: Floats, kind: Gate) -> Floats:
    """Return gate(first half of the columns) * second half."""
    a, b = np.split(x, 2, axis=1)
    y: Floats = gate(a, kind) * b
    return y


def gate(x: Floats, kind: Gate) -> Floats:
    """Return the gate's value of each element."""
    if kind == "gelu_tanh":
        inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
        y: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    else:
        y = (np.float32(1) if kind == "sigmoid" else x) / (1 + np.exp(-x))
    return y


def quantize_activations(x: Floats) -> Floats:
    """Round each group of 32 values of a row to int8 steps of max|x| / 127, ties to even; return the rounded values."""
    groups = x.reshape(len(x), -1, ACTIVATION_GROUP)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    rounded: Floats = np.rint(groups * inverse) * scale
    return rounded.reshape(x.shape)
