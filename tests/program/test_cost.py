"""Costs of a small program, worked out by hand."""

from __future__ import annotations

import pytest

from octavo.cache_spec import AttentionGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.cost import OpCost, StepShape, program_costs
from octavo.program.ops import CacheRef, Weight, WeightPart

E, V = 8, 100
WEIGHT_BYTES = {"embed": V * 4, "norm": 32, "qkv": 96, "o": 40}


def make_costs(shape: StepShape, window: int | None = None) -> dict[str, OpCost]:
    """Return the cost of each op by its kind; two query heads and one kv head of 4 dims."""
    group = AttentionGroupSpec("full" if window is None else "sliding", 1, 1, 4, "float16", 16, window)
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
    return Weight(name, shape, ("axis",) * len(shape), (WeightPart(name, shape[0]),))


def test_linear_reads_its_weights_once_and_computes_every_row() -> None:
    cost = make_costs(StepShape([3, 1], [3, 20], 2))["linear"]
    assert cost.flops == 2 * 4 * 16 * E
    assert cost.bytes == WEIGHT_BYTES["qkv"] + 4 * 4 * (E + 16)


def test_head_computes_logit_rows_only() -> None:
    cost = make_costs(StepShape([3, 1], [3, 20], 2))["head"]
    assert cost.flops == 2 * 2 * V * E
    assert cost.bytes == WEIGHT_BYTES["embed"] + 4 * 2 * (E + V)


def test_embedding_reads_the_rows_it_needs() -> None:
    assert make_costs(StepShape([4], [4], 0))["embedding"].bytes == 4 * 4 + 4 * 4 * E


def test_keys_and_values_are_written_in_the_width_of_the_cache() -> None:
    assert make_costs(StepShape([4], [4], 0))["kv_write"].bytes == 4 * 4 * 8 + 4 * 8 * 2


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
