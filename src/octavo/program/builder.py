"""Writes a Program: each method appends one op, checks widths, and returns the new value.

A mistake here is a mistake in a model file, found at load before anything runs, so checks raise `ValueError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache_spec import AttentionGroupSpec, CacheGroupSpec
from octavo.program.ops import (
    Add,
    CacheRef,
    Embedding,
    Gate,
    GatedMul,
    GatherRows,
    KvWrite,
    Linear,
    Mul,
    Op,
    PagedAttention,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    Rows,
    Scale,
    Softcap,
    Value,
    Weight,
)


class ProgramBuilder:
    """Collects ops in order. Ops up to `gather_rows` form the body, that op and the rest the head."""

    def __init__(self, cache_groups: Sequence[CacheGroupSpec], *, max_model_len: int) -> None:
        self._cache_groups = tuple(cache_groups)
        self._max_model_len = max_model_len
        self._body: list[Op] = []
        self._head: list[Op] = []
        self._values: list[Value] = []
        self._weights: dict[str, Weight] = {}
        self._rope_tables: dict[str, RopeTable] = {}
        self._hidden: Value | None = None

    def embedding(self, weight: Weight, *, scale: float = 1.0) -> Value:
        """Look up `token_ids`: [T, E]."""
        out = self._value("T", self._matrix_shape(weight)[1])
        self._append(Embedding((), (out,), (weight,), scale))
        return out

    def rms_norm(self, x: Value, weight: Weight, *, eps: float) -> Value:
        """Normalise each vector of the weight's length in a row: the whole row, or each head of it."""
        (width,) = weight.shape
        _check(x.width % width == 0, f"rms_norm: {weight.name} has {width} values, rows have {x.width}")
        out = self._value(x.rows, x.width)
        self._append(RmsNorm((x,), (out,), (weight,), x.width // width, eps))
        return out

    def linear(self, x: Value, weight: Weight, *, bias: Weight | None = None, add_to: Value | None = None) -> Value:
        """Return x Wᵀ (+ bias) (+ add_to): [rows, N]."""
        num_columns, width = self._matrix_shape(weight)
        _check(x.width == width, f"linear: {weight.name} reads {width} columns, the input has {x.width}")
        if bias is not None:
            _check(bias.shape == (num_columns,), f"linear: {bias.name} is {bias.shape}, expected ({num_columns},)")
        if add_to is not None:
            fits = (add_to.rows, add_to.width) == (x.rows, num_columns)
            _check(fits, f"linear: add_to is [{add_to.rows}, {add_to.width}], expected [{x.rows}, {num_columns}]")
        out = self._value(x.rows, num_columns)
        inputs = (x,) if add_to is None else (x, add_to)
        self._append(Linear(inputs, (out,), (weight,) if bias is None else (weight, bias)))
        return out

    def linear_split(
        self, x: Value, weight: Weight, sizes: Sequence[int], *, bias: Weight | None = None
    ) -> tuple[Value, ...]:
        """Like `linear`; return consecutive columns of the one result as views of these widths."""
        whole = self.linear(x, weight, bias=bias)
        _check(sum(sizes) == whole.width, f"linear_split: sizes {tuple(sizes)} do not add up to {whole.width}")
        views = []
        column = 0
        for width in sizes:
            views.append(self._value(whole.rows, width, base=whole.id, column=column))
            column += width
        return tuple(views)

    def rope(
        self, q: Value, k: Value, table: RopeTable, *, head_dim: int, interleaved: bool = False
    ) -> tuple[Value, Value]:
        """Rotate q and k by their rows' positions."""
        for x in (q, k):
            _check(x.width % head_dim == 0, f"rope: {x.width} columns are not whole heads of {head_dim}")
        _check(2 * table.half <= head_dim, f"rope: {table.name} rotates {2 * table.half} dims of {head_dim}")
        known = self._rope_tables.setdefault(table.name, table)
        _check(known == table, f"rope: two different tables are named {table.name}")
        outs = (self._value(q.rows, q.width), self._value(k.rows, k.width))
        self._append(Rope((q, k), outs, (), table, head_dim, interleaved))
        return outs

    def kv_write(self, k: Value, v: Value, cache: CacheRef) -> None:
        """Store this step's keys and values."""
        group = self._group(cache)
        width = group.num_kv_heads * group.head_dim
        _check(k.width == v.width == width, f"kv_write: k {k.width} and v {v.width} columns, the cache holds {width}")
        self._append(KvWrite((k, v), (), (), cache))

    def paged_attention(
        self,
        q: Value,
        cache: CacheRef,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Value:
        """Attend over the cache: [T, H * D]."""
        group = self._group(cache)
        num_heads, rest = divmod(q.width, group.head_dim)
        fits = rest == 0 and num_heads % group.num_kv_heads == 0
        _check(fits, f"paged_attention: {q.width} columns for {group.num_kv_heads} kv heads of {group.head_dim}")
        _check(window == group.window, f"paged_attention: window {window}, the cache group has {group.window}")
        out = self._value(q.rows, q.width)
        self._append(PagedAttention((q,), (out,), (), cache, num_heads, scale, window, softcap))
        return out

    def swiglu(self, x: Value) -> Value:
        """Return silu(x[:, :F]) * x[:, F:]."""
        return self._gated_mul(x, "silu")

    def geglu(self, x: Value) -> Value:
        """Return gelu(x[:, :F]) * x[:, F:], gelu in its tanh form."""
        return self._gated_mul(x, "gelu_tanh")

    def add(self, a: Value, b: Value) -> Value:
        """Return a + b."""
        out = self._same_shape("add", a, b)
        self._append(Add((a, b), (out,), ()))
        return out

    def mul(self, a: Value, b: Value) -> Value:
        """Return a * b, element by element."""
        out = self._same_shape("mul", a, b)
        self._append(Mul((a, b), (out,), ()))
        return out

    def scale(self, x: Value, factor: float) -> Value:
        """Return factor * x."""
        out = self._value(x.rows, x.width)
        self._append(Scale((x,), (out,), (), factor))
        return out

    def softcap(self, x: Value, cap: float) -> Value:
        """Return cap * tanh(x / cap)."""
        _check(cap > 0, f"softcap: the cap is {cap}, must be positive")
        out = self._value(x.rows, x.width)
        self._append(Softcap((x,), (out,), (), cap))
        return out

    def gather_rows(self, x: Value) -> Value:
        """End the body with x as its result, and begin the head with the rows that need logits: [N, E]."""
        _check(self._hidden is None, "gather_rows: the head has begun already")
        _check(x.rows == "T" and x.base is None, "gather_rows: the body's result must be a whole value of T rows")
        self._hidden = x
        out = self._value("N", x.width)
        self._append(GatherRows((x,), (out,), ()))
        return out

    def finish(self, logits: Value) -> Program:
        """Return the program whose result is `logits`."""
        if self._hidden is None:
            raise ValueError("finish: the program has no gather_rows, so no head")
        _check(logits.rows == "N", "finish: the logits must have N rows")
        return Program(
            body=tuple(self._body),
            head=tuple(self._head),
            values=tuple(self._values),
            hidden=self._hidden,
            logits=logits,
            weights=tuple(self._weights.values()),
            rope_tables=tuple(self._rope_tables.values()),
            cache_groups=self._cache_groups,
            vocab_size=logits.width,
            hidden_size=self._hidden.width,
            max_model_len=self._max_model_len,
        )

    def _append(self, op: Op) -> None:
        for weight in op.weights:
            known = self._weights.setdefault(weight.name, weight)
            _check(known == weight, f"{op.kind}: two different weights are named {weight.name}")
        expected: Rows = "T" if self._hidden is None or isinstance(op, GatherRows) else "N"
        for x in op.inputs:
            _check(x.rows == expected, f"{op.kind}: reads a value of {x.rows} rows, expected {expected}")
        (self._body if self._hidden is None else self._head).append(op)

    def _value(self, rows: Rows, width: int, *, base: int | None = None, column: int = 0) -> Value:
        value = Value(len(self._values), rows, width, base, column)
        self._values.append(value)
        return value

    def _gated_mul(self, x: Value, gate: Gate) -> Value:
        _check(x.width % 2 == 0, f"gated_mul: {x.width} columns are not two halves")
        out = self._value(x.rows, x.width // 2)
        self._append(GatedMul((x,), (out,), (), gate))
        return out

    def _same_shape(self, kind: str, a: Value, b: Value) -> Value:
        same = (a.rows, a.width) == (b.rows, b.width)
        _check(same, f"{kind}: [{a.rows}, {a.width}] and [{b.rows}, {b.width}] differ")
        return self._value(a.rows, a.width)

    def _group(self, cache: CacheRef) -> AttentionGroupSpec:
        _check(0 <= cache.group < len(self._cache_groups), f"cache group {cache.group} does not exist")
        group = self._cache_groups[cache.group]
        if not isinstance(group, AttentionGroupSpec):
            raise ValueError(f"cache group {cache.group} holds recurrent states, not keys and values")
        _check(0 <= cache.layer < group.num_layers, f"cache group {cache.group} has no layer {cache.layer}")
        return group

    @staticmethod
    def _matrix_shape(weight: Weight) -> tuple[int, int]:
        if len(weight.shape) != 2:
            raise ValueError(f"{weight.name} is {weight.shape}, expected a matrix")
        return weight.shape[0], weight.shape[1]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
