"""Writes a Program: each method appends one op, checks widths, and returns the new value.

A mistake here is a mistake in a model file, found at load before anything runs, so checks raise `ValueError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache_spec import CacheGroupSpec
from octavo.program.moe_ops import Moe, Route, Routes, Routing
from octavo.program.ops import (
    Add,
    CacheRef,
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
    RopeTable,
    Rows,
    Scale,
    Softcap,
    Value,
    Weight,
)


class ProgramBuilder:
    """Collects ops in order: of the body, from `gather_rows` on of the head, from `start_pool` on of the pool."""

    def __init__(self, cache_groups: Sequence[CacheGroupSpec], *, max_model_len: int) -> None:
        self._cache_groups = tuple(cache_groups)
        self._max_model_len = max_model_len
        self._body: list[Op] = []
        self._head: list[Op] = []
        self._pool: list[Op] = []
        self._ops = self._body
        """The one of them that is being written."""
        self._first_value = 0
        """Of it, where it is not the body: other parts read nothing else, but the body's result."""
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
        group = cache.attention_group(self._cache_groups)
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
        group = cache.attention_group(self._cache_groups)
        num_heads, rest = divmod(q.width, group.head_dim)
        fits = rest == 0 and num_heads % group.num_kv_heads == 0
        _check(fits, f"paged_attention: {q.width} columns for {group.num_kv_heads} kv heads of {group.head_dim}")
        _check(window == group.window, f"paged_attention: window {window}, the cache group has {group.window}")
        out = self._value(q.rows, q.width)
        self._append(PagedAttention((q,), (out,), (), cache, num_heads, scale, window, softcap))
        return out

    def causal_conv1d(self, x: Value, weight: Weight, cache: CacheRef) -> Value:
        """Convolve each channel with its last inputs, then silu: [T, channels]."""
        group = cache.state_group(self._cache_groups)
        size = (group.conv_width * group.conv_channels,)
        _check(x.width == group.conv_channels, f"causal_conv1d: {x.width} columns, the group has {group.conv_channels}")
        _check(weight.shape == size, f"causal_conv1d: {weight.name} is {weight.shape}, expected {size}")
        out = self._value(x.rows, x.width)
        self._append(CausalConv1d((x,), (out,), (weight,), cache))
        return out

    def gated_delta_rule(
        self, qkv: Value, b: Value, a: Value, decay: Weight, dt_bias: Weight, cache: CacheRef, *, tiled_heads: bool
    ) -> Value:
        """Run the recurrence of every value head: [T, value heads * value dim]."""
        group = cache.state_group(self._cache_groups)
        out_width = group.num_value_heads * group.value_dim
        width = 2 * group.num_key_heads * group.key_dim + out_width
        _check(qkv.width == width, f"gated_delta_rule: q, k and v have {qkv.width} columns, expected {width}")
        for x in (b, a):
            fits = x.width == group.num_value_heads
            _check(fits, f"gated_delta_rule: {x.width} columns for {group.num_value_heads} value heads")
        for weight in (decay, dt_bias):
            fits = weight.shape == (group.num_value_heads,)
            _check(fits, f"gated_delta_rule: {weight.name} is {weight.shape}, expected ({group.num_value_heads},)")
        out = self._value(qkv.rows, out_width)
        self._append(GatedDeltaRule((qkv, b, a), (out,), (decay, dt_bias), cache, tiled_heads))
        return out

    def mul_by_gate(self, x: Value, g: Value, gate: Gate) -> Value:
        """Return x * gate(g); g may be one column for the whole row."""
        fits = g.rows == x.rows and g.width in (1, x.width)
        _check(fits, f"mul_by_gate: [{x.rows}, {x.width}] and gates [{g.rows}, {g.width}]")
        out = self._value(x.rows, x.width)
        self._append(MulByGate((x, g), (out,), (), gate))
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

    def route(self, x: Value, router: Weight, routing: Routing, *, choice_bias: Weight | None = None) -> Routes:
        """Choose the experts of each row."""
        problem = routing.problem()
        _check(problem is None, f"route: {problem}")
        expected = (routing.num_experts, x.width)
        _check(router.shape == expected, f"route: {router.name} is {router.shape}, expected {expected}")
        if choice_bias is not None:
            fits = choice_bias.shape == (routing.num_experts,)
            _check(fits, f"route: {choice_bias.name} is {choice_bias.shape}, expected ({routing.num_experts},)")
        experts, weights = self._value(x.rows, routing.top_k), self._value(x.rows, routing.top_k)
        bias = () if choice_bias is None else (choice_bias,)
        self._append(Route((x,), (experts, weights), (router, *bias), routing))
        return Routes(experts, weights, routing.num_experts)

    def moe(
        self,
        x: Value,
        routes: Routes,
        gate_up: Sequence[Weight],
        down: Sequence[Weight],
        *,
        gate: Gate,
        add_to: Value | None = None,
    ) -> Value:
        """Return the weighted sum of what each row's experts make of it (+ add_to): [T, E]."""
        counts = (len(gate_up), len(down))
        _check(counts == (routes.num_experts,) * 2, f"moe: {counts} matrices for {routes.num_experts} experts")
        width = self._matrix_shape(down[0])[1]
        for matrices, expected in ((gate_up, (2 * width, x.width)), (down, (x.width, width))):
            for matrix in matrices:
                if matrix.shape != expected:
                    raise ValueError(f"moe: {matrix.name} is {matrix.shape}, expected {expected}")
        if add_to is not None:
            fits = (add_to.rows, add_to.width) == (x.rows, x.width)
            _check(fits, f"moe: add_to is [{add_to.rows}, {add_to.width}], expected [{x.rows}, {x.width}]")
        out = self._value(x.rows, x.width)
        added = () if add_to is None else (add_to,)
        self._append(Moe((x, routes.experts, routes.weights, *added), (out,), (*gate_up, *down), gate))
        return out

    def gather_rows(self, x: Value) -> Value:
        """End the body with x as its result, and begin the head with the rows that need logits: [N, E]."""
        _check(self._hidden is None, "gather_rows: the head has begun already")
        _check(x.rows == "T" and x.base is None, "gather_rows: the body's result must be a whole value of T rows")
        self._hidden = x
        return self._start(self._head, x)

    def start_pool(self) -> Value:
        """End the head, and begin the pool with the rows whose hidden states are wanted: [N, E]."""
        if self._hidden is None:
            raise ValueError("start_pool: there is no head yet")
        return self._start(self._pool, self._hidden)

    def finish(self, logits: Value, pooled: Value | None = None) -> Program:
        """Return the program that makes `logits`, and `pooled` where it has a pool."""
        if self._hidden is None:
            raise ValueError("finish: the program has no gather_rows, so no head")
        _check(logits.rows == "N", "finish: the logits must have N rows")
        _check((pooled is None) == (not self._pool), "finish: a pool has a result, and nothing else has")
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
            pool=tuple(self._pool),
            pooled=pooled,
        )

    def _start(self, ops: list[Op], hidden: Value) -> Value:
        self._ops, self._first_value = ops, len(self._values)
        out = self._value("N", hidden.width)
        self._append(GatherRows((hidden,), (out,), ()))
        return out

    def _append(self, op: Op) -> None:
        for weight in op.weights:
            known = self._weights.setdefault(weight.name, weight)
            _check(known == weight, f"{op.kind}: two different weights are named {weight.name}")
        gathers = isinstance(op, GatherRows)
        expected: Rows = "T" if self._hidden is None or gathers else "N"
        for x in op.inputs:
            _check(x.rows == expected, f"{op.kind}: reads a value of {x.rows} rows, expected {expected}")
            _check(gathers or x.id >= self._first_value, f"{op.kind}: reads a value of another entry point")
        self._ops.append(op)

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

    @staticmethod
    def _matrix_shape(weight: Weight) -> tuple[int, int]:
        if len(weight.shape) != 2:
            raise ValueError(f"{weight.name} is {weight.shape}, expected a matrix")
        return weight.shape[0], weight.shape[1]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
