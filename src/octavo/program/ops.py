"""The vocabulary of a Program: values, weights, caches, and one small class per op.

A `Program` says *what* is computed, once, at load time. Its readers are `reference.py`, `native.py` with its planner,
and `cost.py`. Nothing here computes.

Symbols: T rows of the step, R requests, N logit rows. Letters of widths as everywhere: H heads, KVH kv heads,
D head dim, E hidden, F ffn, V vocab.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from octavo.cache_spec import AttentionGroupSpec, CacheGroupSpec, StateGroupSpec

Rows = Literal["T", "N"]
Gate = Literal["silu", "gelu_tanh", "sigmoid"]

ACTIVATION_GROUP = 32
"""Values of a row that share one scale when activations are quantised."""


@dataclass(frozen=True, slots=True)
class Value:
    """A float32 matrix [rows, width] that one op writes once.

    A view (`base` is set) is columns [column, column + width) of another value; writing the base writes its views.
    """

    id: int
    """Its index in `Program.values`."""
    rows: Rows
    width: int
    base: int | None = None
    column: int = 0


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One checkpoint tensor of a weight: rows [previous parts, + num_rows) of the whole."""

    name: str
    num_rows: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A named weight. Matrices are [N, K] as a linear's `y = x Wᵀ` reads them; vectors are float32."""

    name: str
    """Stable, for example `layers.3.mlp.gate_up_proj.weight`."""
    shape: tuple[int, ...]
    parts: tuple[WeightPart, ...]
    """What is stacked along the first axis, in order; a single part unless fused. Parts may differ in format."""

    @property
    def is_matrix(self) -> bool:
        """Whether it is packed for products; else a float32 vector."""
        return len(self.shape) == 2


@dataclass(frozen=True, slots=True)
class CacheRef:
    """One layer's keys and values, or its recurrent state: cache group, and the layer's index inside the group."""

    group: int
    layer: int

    def attention_group(self, groups: Sequence[CacheGroupSpec]) -> AttentionGroupSpec:
        """Return, of all cache groups, that of the layer's keys and values. Raises: ValueError if it is none."""
        group = self._group_of(groups)
        if not isinstance(group, AttentionGroupSpec):
            raise ValueError(f"cache group {self.group} holds recurrent states, not keys and values")
        return group

    def state_group(self, groups: Sequence[CacheGroupSpec]) -> StateGroupSpec:
        """Return, of all cache groups, that of the layer's recurrent state. Raises: ValueError if it is none."""
        group = self._group_of(groups)
        if not isinstance(group, StateGroupSpec):
            raise ValueError(f"cache group {self.group} holds keys and values, not recurrent states")
        return group

    def _group_of(self, groups: Sequence[CacheGroupSpec]) -> CacheGroupSpec:
        if not 0 <= self.group < len(groups):
            raise ValueError(f"cache group {self.group} does not exist")
        group = groups[self.group]
        if not 0 <= self.layer < group.num_layers:
            raise ValueError(f"cache group {self.group} has no layer {self.layer}")
        return group


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotation angles of one kind of layer. The numbers come from `rope_table.build_rope_table`."""

    name: str
    inv_freq: tuple[float, ...]
    """Radians per position, one for each pair of dims."""
    scale: float
    """Multiplies cos and sin (yarn, longrope)."""
    num_positions: int

    @property
    def half(self) -> int:
        """Pairs rotated in each head; dims from 2 * half on pass unchanged."""
        return len(self.inv_freq)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. Subclasses add what they need to know, and declare how they behave.

    The class variables: `kind` names the op; `in_place` says that outputs[i] may take the memory of inputs[i] if that
    value is not read again.
    """

    kind: ClassVar[str]
    in_place: ClassVar[bool] = False

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True)
class Embedding(Op):
    """out[t] = scale * weight[token_ids[t]]."""

    kind: ClassVar[str] = "embedding"

    scale: float


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """out = x / sqrt(mean(x²) + eps) * w, over each of `heads` consecutive vectors of a row.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467 eq. 4.
    """

    kind: ClassVar[str] = "rms_norm"
    in_place: ClassVar[bool] = True

    heads: int
    eps: float


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """out = x Wᵀ (+ bias) (+ add_to). inputs: x, then add_to; weights: W, then bias."""

    kind: ClassVar[str] = "linear"

    @property
    def weight(self) -> Weight:
        """The matrix [N, K]."""
        return self.weights[0]

    @property
    def bias(self) -> Weight | None:
        """The vector [N], or None."""
        return self.weights[1] if len(self.weights) > 1 else None

    @property
    def add_to(self) -> Value | None:
        """What the product is added to, or None. The output may take its memory."""
        return self.inputs[1] if len(self.inputs) > 1 else None


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotate each head of each input by its row's position: dims i and i + half, or 2i and 2i + 1 if interleaved.

    Source: Su et al. 2021, arXiv:2104.09864.
    """

    kind: ClassVar[str] = "rope"
    in_place: ClassVar[bool] = True

    table: RopeTable
    head_dim: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class KvWrite(Op):
    """Store k and v [T, KVH * D], rounded to the cache's dtype, at each row's position in its request."""

    kind: ClassVar[str] = "kv_write"

    cache: CacheRef


@dataclass(frozen=True, slots=True)
class PagedAttention(Op):
    """Causal attention of q [T, H * D] over keys and values read from the cache, this step's own included.

    Position j is visible to position i if j <= i and, with a window, i - j < window.

    Source: Kwon et al. 2023, arXiv:2309.06180 sec. 4.
    """

    kind: ClassVar[str] = "paged_attention"

    cache: CacheRef
    num_heads: int
    scale: float
    window: int | None
    softcap: float | None


@dataclass(frozen=True, slots=True)
class CausalConv1d(Op):
    """out[t, c] = silu(sum over i of w[i, c] * x[t - width + 1 + i, c]), width being the cache group's `conv_width`.

    Inputs before the step's rows come from the request's slot, whose `conv` and `border_conv` are brought up to date.
    The weight is a vector: w [width, channels], tap after tap.
    """

    kind: ClassVar[str] = "causal_conv1d"

    cache: CacheRef


@dataclass(frozen=True, slots=True)
class GatedDeltaRule(Op):
    """The recurrence of Gated DeltaNet for each value head, over a request's rows in order.

    inputs: qkv [T, q | k | v], the convolution's result; b and a [T, value heads]. weights: decay = -exp(A_log) and
    dt_bias [value heads]. With q and k of each head normalised to length 1 and q divided by sqrt(key_dim),
    beta = sigmoid(b) and g = decay * softplus(a + dt_bias):

        S <- e^g S;  u = beta (v - S^T k);  S <- S + k u^T;  out = S^T q

    The state lives in the request's slot, as S at the last multiple of 16 tokens and the rows since.

    Source: Yang et al. 2024, arXiv:2412.06464.
    """

    kind: ClassVar[str] = "gated_delta_rule"

    cache: CacheRef
    tiled_heads: bool
    """Which key head value head h reads, with r value heads for each key head: h % key heads if tiled, else h // r."""


@dataclass(frozen=True, slots=True)
class MulByGate(Op):
    """out = x * gate(g): an output gate. inputs: x, g; g is as wide as x, or one column for the whole row."""

    kind: ClassVar[str] = "mul_by_gate"
    in_place: ClassVar[bool] = True

    gate: Gate


@dataclass(frozen=True, slots=True)
class GatedMul(Op):
    """out = gate(x[:, :F]) * x[:, F:]: swiglu with silu, geglu with gelu_tanh. Shazeer 2020, arXiv:2002.05202."""

    kind: ClassVar[str] = "gated_mul"

    gate: Gate


@dataclass(frozen=True, slots=True)
class Add(Op):
    """out = a + b."""

    kind: ClassVar[str] = "add"
    in_place: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Mul(Op):
    """out = a * b, element by element."""

    kind: ClassVar[str] = "mul"
    in_place: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """out = factor * x."""

    kind: ClassVar[str] = "scale"
    in_place: ClassVar[bool] = True

    factor: float


@dataclass(frozen=True, slots=True)
class Softcap(Op):
    """out = cap * tanh(x / cap)."""

    kind: ClassVar[str] = "softcap"
    in_place: ClassVar[bool] = True

    cap: float


@dataclass(frozen=True, slots=True)
class GatherRows(Op):
    """out[n] = x[logit_rows[n]]: from T rows to N rows."""

    kind: ClassVar[str] = "gather_rows"


@dataclass(frozen=True, slots=True)
class Program:
    """A model as lists of ops, each in order of execution: body, head and pool."""

    body: tuple[Op, ...]
    """T rows: token ids to `hidden`."""
    head: tuple[Op, ...]
    """N rows: `hidden` to `logits`. Starts with its only `GatherRows`; may be run in slices of the N rows."""
    values: tuple[Value, ...]
    hidden: Value
    """[T, E], before the final norm."""
    logits: Value
    """[N, V]."""
    weights: tuple[Weight, ...]
    """Every weight once, in order of first use."""
    rope_tables: tuple[RopeTable, ...]
    cache_groups: tuple[CacheGroupSpec, ...]
    vocab_size: int
    """Width of the logits: the weights', which may exceed the tokenizer's."""
    hidden_size: int
    max_model_len: int
    pool: tuple[Op, ...] = ()
    """N rows: `hidden` to `pooled`. Like the head; empty for a program that gives no hidden states."""
    pooled: Value | None = None
    """[N, E], after the final norm."""
