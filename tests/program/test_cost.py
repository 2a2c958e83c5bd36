"""Costs of a small program, worked out by hand."""

from __future__ import annotations

import pytest

from octavo.cache_spec import AttentionGroupSpec, CacheDtype, StateGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.cost import OpCost, StepShape, program_costs
from octavo.program.moe_ops import Routing
from octavo.program.ops import CacheRef, RopeTable, Weight, WeightPart

E, V = 8, 100
WEIGHT_BYTES = {"embed": V * 4, "norm": 32, "qkv": 96, "o": 40}


def make_costs(shape: StepShape, window: int | None = None, cache_dtype: CacheDtype = "float16") -> dict[str, OpCost]:
    """Return the cost of each op by its kind; two query heads and one kv head of 4 dims."""
    group = AttentionGroupSpec("full" if window is None else "sliding", 1, 1, 4, cache_dtype, 16, window)
    b = ProgramBuilder([group], max_model_len=64)
    x = b.embedding(make_weight("embed", V, E))
    h = b.rms_norm(x, make_weight("norm", E), eps=1e-6)
    q, k, v = b.linear_split(h, make_weight("qkv", 16, E), [8, 4, 4])
    b.kv_write(k, v, CacheRef(0, 0))
    b.paged_attention(q, CacheRef(0, 0), scale=1.0, window=window)
    logits = b.linear(b.gather_rows(x), make_weight("embed", V, E))
    costs = program_costs(b.finish(logits), shape, WEIGHT_BYTES)
    named = {cost.op.kind: cost for cost in costs[:-1]}
    return {**named, "head": costs[-1]}


def make_weight(name: str, *shape: int) -> Weight:
    return Weight(name, shape, (WeightPart(name, shape[0]),))


def test_linear_reads_its_weights_once_and_computes_every_row() -> None:
    cost = make_costs(StepShape([3, 1], [3, 20], 2))["linear"]
    assert cost.flops == 2 * 4 * 16 * E
    assert cost.bytes == WEIGHT_BYTES["qkv"] + 4 * 4 * (E + 16)


def test_head_computes_logit_rows_only() -> None:
    cost = make_costs(StepShape([3, 1], [3, 20], 2))["head"]
    assert cost.flops == 2 * 2 * V * E
    assert cost.bytes == WEIGHT_BYTES["embed"] + 4 * 2 * (E + V)


def test_small_ops_count_each_sum_and_product() -> None:
    """Rows of 8 values, two heads of 4 of which 2 dims turn; three rows."""
    b = ProgramBuilder([AttentionGroupSpec("full", 1, 1, 4, "float16", 16, None)], max_model_len=64)
    x = b.embedding(make_weight("embed", V, E), scale=2.0)
    x, _ = b.rope(x, b.scale(x, 2.0), RopeTable("rope", (1.0,), 1.0, 64), head_dim=4)
    logits = b.linear(b.gather_rows(b.swiglu(x)), make_weight("head", V, 4))
    program = b.finish(logits)
    costs = program_costs(program, StepShape([3], [3], 1), {"embed": 1, "head": 1})
    flops = {cost.op.kind: cost.flops for cost in costs}
    assert flops["embedding"] == 3 * 8
    assert flops["scale"] == 3 * 8
    assert flops["rope"] == 2 * 3 * 2 * 6
    assert flops["gated_mul"] == 3 * 4 * 5
    assert flops["gather_rows"] == 0


def test_a_norm_squares_adds_scales_and_weighs() -> None:
    assert make_costs(StepShape([3], [3], 1))["rms_norm"].flops == 4 * 3 * E


def test_embedding_reads_the_rows_it_needs() -> None:
    assert make_costs(StepShape([4], [4], 0))["embedding"].bytes == 4 * 4 + 4 * 4 * E


def test_keys_and_values_are_written_in_the_width_of_the_cache() -> None:
    assert make_costs(StepShape([4], [4], 0))["kv_write"].bytes == 4 * 4 * 8 + 4 * 8 * 2


def test_an_int8_cache_adds_a_scale_to_each_key_and_value() -> None:
    costs = make_costs(StepShape([4], [4], 0), cache_dtype="int8")
    assert costs["kv_write"].bytes == 4 * 4 * 8 + 4 * 2 * (4 + 4)
    assert costs["paged_attention"].bytes == 4 * 2 * (4 + 4) + 4 * 4 * (8 + 8)


@pytest.mark.parametrize(
    ("window", "pairs", "tokens"),
    [(None, 18 + 19 + 20 + 1, 20 + 1), (5, 5 + 5 + 5 + 1, 7 + 1)],
    ids=["full", "window"],
)
def test_attention_counts_what_its_queries_see(window: int | None, pairs: int, tokens: int) -> None:
    cost = make_costs(StepShape([3, 1], [20, 1], 0), window)["paged_attention"]
    assert cost.flops == 4 * pairs * 2 * 4
    assert cost.bytes == tokens * (2 * 4 * 2) + 4 * 4 * (8 + 8)


def test_step_without_logits_has_a_free_head_but_for_its_weights() -> None:
    cost = make_costs(StepShape([4], [4], 0))["head"]
    assert (cost.flops, cost.bytes) == (0, WEIGHT_BYTES["embed"])


def make_delta_costs(shape: StepShape) -> dict[str, OpCost]:
    """One key head of 4 dims, two value heads of 3: 14 channels, 24 values of state."""
    group = StateGroupSpec(1, 1, 2, 4, 3, conv_width=4, conv_channels=14, block_size=16)
    b = ProgramBuilder([group], max_model_len=64)
    x = b.embedding(make_weight("embed", V, 18))
    qkv, beta, alpha = b.linear_split(x, make_weight("in", 18, 18), [14, 2, 2])
    qkv = b.causal_conv1d(qkv, make_weight("conv", 4 * 14), CacheRef(0, 0))
    vectors = make_weight("decay", 2), make_weight("dt_bias", 2)
    b.gated_delta_rule(qkv, beta, alpha, *vectors, CacheRef(0, 0), tiled_heads=False)
    weight_bytes = {"embed": 1, "in": 1, "conv": 4 * 56, "decay": 8, "dt_bias": 8}
    costs = program_costs(b.finish(b.linear(b.gather_rows(x), make_weight("embed", V, 18))), shape, weight_bytes)
    return {cost.op.kind: cost for cost in costs[:-1]}


def test_a_convolution_reads_and_writes_the_inputs_that_it_remembers() -> None:
    cost = make_delta_costs(StepShape([1, 5], [30, 5], 1))["causal_conv1d"]
    assert cost.flops == 2 * 6 * 4 * 14
    assert cost.bytes == 4 * (6 * 28 + 56 + 2 * 2 * 3 * 14)


@pytest.mark.parametrize(
    ("query_len", "seq_len", "seen", "num_folds", "floats"),
    [
        (1, 20, 4, 0, 24 + (3 + 1) * 10),
        (1, 32, 16, 1, 2 * 24 + 15 * 10),
        (20, 22, sum(range(3, 17)) + sum(range(1, 7)), 1, 2 * 24 + (2 + 6) * 10),
    ],
    ids=["inside", "at_a_border", "across_a_border"],
)
def test_a_state_is_read_once_and_written_at_a_border(
    query_len: int, seq_len: int, seen: int, num_folds: int, floats: int
) -> None:
    cost = make_delta_costs(StepShape([query_len], [seq_len], 1))["gated_delta_rule"]
    assert cost.flops == query_len * 4 * 24 + seen * 4 * 10 + num_folds * 2 * 16 * 24
    assert cost.bytes == 4 * (query_len * (14 + 4 + 6) + 4 + floats)


def make_moe_cost(num_rows: int) -> OpCost:
    """Eight experts of 2 values over rows of 4, two for each row; a matrix takes 100 bytes."""
    b = ProgramBuilder([], max_model_len=64)
    x = b.embedding(make_weight("embed", V, 4))
    routes = b.route(x, make_weight("router", 8, 4), Routing(8, 2, "softmax"))
    gate_up = [make_weight(f"gate_up.{expert}", 4, 4) for expert in range(8)]
    down = [make_weight(f"down.{expert}", 4, 2) for expert in range(8)]
    b.moe(x, routes, gate_up, down, gate="silu")
    program = b.finish(b.linear(b.gather_rows(x), make_weight("embed", V, 4)))
    weight_bytes = {weight.name: 100 for weight in program.weights}
    costs = program_costs(program, StepShape([num_rows], [num_rows], 1), weight_bytes)
    return next(cost for cost in costs if cost.op.kind == "moe")


@pytest.mark.parametrize(("num_rows", "num_active"), [(1, 2), (2, 3.5), (1000, 8)], ids=["one", "two", "many"])
def test_a_mixture_reads_each_expert_that_is_expected_to_be_active_once(num_rows: int, num_active: float) -> None:
    cost = make_moe_cost(num_rows)
    assert cost.bytes == num_active * 200 + 4 * num_rows * (4 + 2 + 2 + 4)
    assert cost.flops == 2 * num_rows * 2 * (4 * 4 + 4 * 2)
