"""What the builder writes down, and the mistakes of a model file that it catches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.cache_spec import AttentionGroupSpec, StateGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.moe_ops import Moe, Route, Routes, Routing
from octavo.program.ops import (
    CacheRef,
    Embedding,
    GatherRows,
    KvWrite,
    Linear,
    PagedAttention,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    Value,
    Weight,
    WeightPart,
)

E, H, KVH, D, V = 12, 3, 1, 4, 20
TABLE = RopeTable("rope", (1.0, 0.5), 1.0, 64)
CACHE = CacheRef(0, 0)


def make_weight(name: str, *shape: int) -> Weight:
    return Weight(name, shape, (WeightPart(name, shape[0]),))


def make_builder(window: int | None = None) -> ProgramBuilder:
    kind = "full" if window is None else "sliding"
    group = AttentionGroupSpec(kind, 1, KVH, D, "float16", 16, window)
    return ProgramBuilder([group], max_model_len=64)


def make_input(b: ProgramBuilder) -> Value:
    return b.embedding(make_weight("embed", V, E), scale=2.0)


def make_program() -> Program:
    """Return a layer of attention and a head that is tied to the embedding."""
    b = make_builder()
    x = make_input(b)
    q, k, v = b.linear_split(x, make_weight("qkv", 20, E), [H * D, KVH * D, KVH * D])
    q = b.rms_norm(q, make_weight("q_norm", D), eps=1e-6)
    q, k = b.rope(q, k, TABLE, head_dim=D)
    b.kv_write(k, v, CACHE)
    x = b.linear(b.paged_attention(q, CACHE, scale=0.5), make_weight("o", E, H * D), add_to=x)
    return b.finish(b.linear(b.gather_rows(x), make_weight("embed", V, E)))


def test_ops_are_listed_in_order_with_the_head_from_gather_rows_on() -> None:
    program = make_program()
    assert [type(op) for op in program.body] == [Embedding, Linear, RmsNorm, Rope, KvWrite, PagedAttention, Linear]
    assert [type(op) for op in program.head] == [GatherRows, Linear]
    assert program.hidden == program.body[-1].outputs[0] == program.head[0].inputs[0]
    assert program.logits == program.head[-1].outputs[0]
    assert (program.vocab_size, program.hidden_size, program.max_model_len) == (V, E, 64)


def test_every_value_is_written_once() -> None:
    program = make_program()
    written = [value.id for op in (*program.body, *program.head) for value in op.outputs]
    views = [value.id for value in program.values if value.base is not None]
    assert sorted(written + views) == list(range(len(program.values)))


def test_parts_of_a_split_are_column_views_of_one_value() -> None:
    b = make_builder()
    q, k, v = b.linear_split(make_input(b), make_weight("qkv", 20, E), [12, 4, 4])
    assert q.base == k.base == v.base
    assert [(view.column, view.width) for view in (q, k, v)] == [(0, 12), (12, 4), (16, 4)]


def test_weights_and_tables_are_listed_once_in_order_of_first_use() -> None:
    program = make_program()
    assert [weight.name for weight in program.weights] == ["embed", "qkv", "q_norm", "o"]
    assert program.rope_tables == (TABLE,)


def test_norm_of_a_head_counts_the_heads_of_a_row() -> None:
    norm = make_program().body[2]
    assert isinstance(norm, RmsNorm)
    assert norm.heads == H


def test_linear_names_its_optional_operands() -> None:
    b = make_builder()
    x = make_input(b)
    plain = b.linear(x, make_weight("w", E, E))
    b.linear(plain, make_weight("w2", E, E), bias=make_weight("b2", E), add_to=x)
    program = b.finish(b.gather_rows(x))
    first, second = program.body[1:]
    assert isinstance(first, Linear)
    assert isinstance(second, Linear)
    assert (first.bias, first.add_to) == (None, None)
    assert (second.bias, second.add_to) == (make_weight("b2", E), x)


def make_routes(b: ProgramBuilder, x: Value, routing: Routing) -> Routes:
    return b.route(x, make_weight("router", routing.num_experts, E), routing)


def make_moe(
    b: ProgramBuilder,
    x: Value,
    *,
    num_matrices: int = 2,
    down: tuple[int, int] = (E, 4),
    add_to: Value | None = None,
) -> Value:
    """Write two experts of 4 values; the second may have a wrong matrix."""
    routes = make_routes(b, x, Routing(2, 1, "softmax"))
    gate_up = [make_weight(f"gate_up.{expert}", 8, E) for expert in range(num_matrices)]
    matrices = [make_weight("down.0", E, 4), make_weight("down.1", *down)]
    return b.moe(x, routes, gate_up, matrices, gate="silu", add_to=add_to)


def test_mixture_names_its_operands() -> None:
    b = make_builder()
    x = make_input(b)
    make_moe(b, x, add_to=x)
    route, moe = b.finish(b.gather_rows(x)).body[1:]
    assert isinstance(route, Route)
    assert isinstance(moe, Moe)
    assert route.choice_bias is None
    assert (moe.num_experts, moe.top_k, moe.add_to) == (2, 1, x)
    assert [weight.name for weight in moe.gate_up + moe.down] == ["gate_up.0", "gate_up.1", "down.0", "down.1"]
    assert moe.inputs[1:3] == route.outputs


MISTAKES: dict[str, Callable[[ProgramBuilder, Value], object]] = {
    "linear: w reads 13 columns": lambda b, x: b.linear(x, make_weight("w", 4, E + 1)),
    "expected a matrix": lambda b, x: b.linear(x, make_weight("w", E)),
    "linear: b is": lambda b, x: b.linear(x, make_weight("w", 4, E), bias=make_weight("b", 5)),
    "linear: add_to": lambda b, x: b.linear(x, make_weight("w", 4, E), add_to=x),
    "linear_split: sizes": lambda b, x: b.linear_split(x, make_weight("w", 4, E), [2, 3]),
    "rms_norm: w has 5": lambda b, x: b.rms_norm(x, make_weight("w", 5), eps=1e-6),
    "rope: 12 columns are not whole heads": lambda b, x: b.rope(x, x, TABLE, head_dim=5),
    "rotates 4 dims of 3": lambda b, x: b.rope(x, x, TABLE, head_dim=3),
    "kv_write: k 12": lambda b, x: b.kv_write(x, x, CACHE),
    "cache group 1 does not exist": lambda b, x: b.paged_attention(x, CacheRef(1, 0), scale=1.0),
    "cache group 0 has no layer 1": lambda b, x: b.paged_attention(x, CacheRef(0, 1), scale=1.0),
    "paged_attention: window 8": lambda b, x: b.paged_attention(x, CACHE, scale=1.0, window=8),
    "gated_mul": lambda b, x: b.swiglu(b.linear(x, make_weight("w", 3, E))),
    "mul_by_gate: ": lambda b, x: b.mul_by_gate(x, b.linear(x, make_weight("w", 3, E)), "sigmoid"),
    "cache group 0 holds keys": lambda b, x: b.causal_conv1d(x, make_weight("w", 4 * E), CACHE),
    "mul_by_gate": lambda b, x: b.mul_by_gate(x, b.linear(x, make_weight("w", 3, E)), "sigmoid"),
    "route: 3 experts per row are to be chosen of 2": lambda b, x: make_routes(b, x, Routing(2, 3, "softmax")),
    "route: router is": lambda b, x: b.route(x, make_weight("router", 3, E), Routing(2, 1, "softmax")),
    "route: bias is": lambda b, x: b.route(
        x, make_weight("router", 2, E), Routing(2, 1, "softmax"), choice_bias=make_weight("bias", 3)
    ),
    "for 2 experts": lambda b, x: make_moe(b, x, num_matrices=3),
    "moe: down.1 is": lambda b, x: make_moe(b, x, down=(E, 5)),
    "moe: add_to": lambda b, x: make_moe(b, x, add_to=b.linear(x, make_weight("w", 3, E))),
    "softcap: the cap is 0": lambda b, x: b.softcap(x, 0.0),
    "add: ": lambda b, x: b.add(x, b.linear(x, make_weight("w", 3, E))),
    "mul: ": lambda b, x: b.mul(x, b.gather_rows(x)),
    "reads a value of T rows, expected N": lambda b, x: (b.gather_rows(x), b.scale(x, 2.0)),
    "the head has begun": lambda b, x: (b.gather_rows(x), b.gather_rows(x)),
    "no gather_rows": lambda b, x: b.finish(x),
    "there is no head yet": lambda b, _: b.start_pool(),
    "reads a value of another entry point": lambda b, x: b.add(b.gather_rows(x), b.start_pool()),
    "a pool has a result": lambda b, x: b.finish(b.gather_rows(x), (b.start_pool(), None)[1]),
    "the logits must have N rows": lambda b, x: (b.gather_rows(x), b.finish(x)),
    "two different weights": lambda b, x: b.linear(x, make_weight("embed", E, E)),
    "two different tables": lambda b, x: [
        b.rope(x, x, table, head_dim=D) for table in (TABLE, RopeTable("rope", (1.0,), 1.0, 64))
    ],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistake_is_caught(message: str) -> None:
    b = make_builder()
    x = make_input(b)
    with pytest.raises(ValueError, match=message):
        MISTAKES[message](b, x)


STATE = CacheRef(0, 0)
DELTA_MISTAKES: dict[str, Callable[[ProgramBuilder, Value], object]] = {
    "cache group 0 holds recurrent states": lambda b, x: b.kv_write(x, x, STATE),
    "causal_conv1d: 12 columns, the group has 14": lambda b, x: b.causal_conv1d(x, make_weight("w", 48), STATE),
    "causal_conv1d: w is": lambda b, x: b.causal_conv1d(
        b.linear(x, make_weight("m", 14, E)), make_weight("w", 14), STATE
    ),
    "q, k and v have 12 columns, expected 14": lambda b, x: run_rule(b, x, qkv=x),
    "5 columns for 2 value heads": lambda b, x: run_rule(b, x, a=b.linear(x, make_weight("a", 5, E))),
    "dt is .* expected": lambda b, x: run_rule(b, x, dt_bias=make_weight("dt", 3)),
}


def run_rule(b: ProgramBuilder, x: Value, **wrong: Any) -> None:
    arguments = {
        "qkv": b.linear(x, make_weight("qkv", 14, E)),
        "b": b.linear(x, make_weight("beta", 2, E)),
        "a": b.linear(x, make_weight("alpha", 2, E)),
        "decay": make_weight("decay", 2),
        "dt_bias": make_weight("dt_bias", 2),
    }
    b.gated_delta_rule(**{**arguments, **wrong}, cache=STATE, tiled_heads=False)


@pytest.mark.parametrize("message", DELTA_MISTAKES)
def test_mistake_with_recurrent_layers_is_caught(message: str) -> None:
    group = StateGroupSpec(1, 1, 2, 4, 3, conv_width=4, conv_channels=14, block_size=16)
    b = ProgramBuilder([group], max_model_len=64)
    x = make_input(b)
    with pytest.raises(ValueError, match=message):
        DELTA_MISTAKES[message](b, x)
