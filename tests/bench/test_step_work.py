from __future__ import annotations

from bench_helpers import make_step

from octavo.bench.recorder import StepRecord
from octavo.bench.step_work import Work, WorkModel
from octavo.cache_spec import AttentionGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.moe_ops import Routing
from octavo.program.ops import CacheRef, Weight, WeightPart

E, V = 8, 100


def make_model(*int8_weights: str) -> WorkModel:
    """One attention with one query and one kv head of 8 dims, and a head."""
    b = ProgramBuilder([AttentionGroupSpec("full", 1, 1, 8, "float16", 16, None)], max_model_len=64)
    x = b.embedding(make_weight("embed", V, E))
    q = b.linear(x, make_weight("q", E, E))
    b.kv_write(q, q, CacheRef(0, 0))
    a = b.paged_attention(q, CacheRef(0, 0), scale=1.0)
    program = b.finish(b.linear(b.gather_rows(a), make_weight("head", V, E)))
    return WorkModel(program, {"embed": 400, "q": 64, "head": 800}, frozenset(int8_weights))


def make_weight(name: str, *shape: int) -> Weight:
    return Weight(name, shape, (WeightPart(name, shape[0]),))


def test_products_count_as_what_they_are_computed_in() -> None:
    step = make_step(decode=2)
    floats, integers = make_model().of(step), make_model("q", "head").of(step)
    products = 2 * 2 * E * E + 2 * 2 * V * E
    assert (floats.int8_ops, integers.int8_ops) == (0, products)
    assert floats.fp32_flops - integers.fp32_flops == products
    assert floats.bytes == integers.bytes


def test_each_stack_of_experts_counts_as_what_it_is_computed_in() -> None:
    """Two of four experts a row: 16 * 8 weights in an expert's first matrix, 8 * 8 in its second."""
    b = ProgramBuilder([AttentionGroupSpec("full", 1, 1, 8, "float16", 16, None)], max_model_len=64)
    x = b.embedding(make_weight("embed", V, E))
    routes = b.route(x, make_weight("router", 4, E), Routing(4, 2, "softmax"))
    up = [make_weight(f"up.{expert}", 16, E) for expert in range(4)]
    down = [make_weight(f"down.{expert}", E, 8) for expert in range(4)]
    program = b.finish(b.gather_rows(b.moe(x, routes, up, down, gate="silu")))
    sizes = dict.fromkeys(["embed", "router", *(weight.name for weight in (*up, *down))], 64)
    ups, downs = (frozenset(weight.name for weight in stack) for stack in (up, down))

    def int8_ops(names: frozenset[str]) -> int:
        return WorkModel(program, sizes, names).of(make_step(decode=3)).int8_ops

    assert int8_ops(ups) == 3 * 2 * 2 * 16 * 8
    assert int8_ops(ups | downs) == 3 * 2 * 2 * (16 * 8 + 8 * 8)
    assert int8_ops(ups - {"up.3"}) == 0


def test_the_table_of_an_embedding_is_no_product() -> None:
    assert make_model("embed").of(make_step(decode=1)).int8_ops == 0


def test_attention_sees_what_was_computed_before() -> None:
    short, long = (
        StepRecord(1, 1, 1, (computed,), (1,), loop_seconds=1.0, native_seconds=1.0, follows=True)
        for computed in (9, 19)
    )
    model = make_model()
    assert model.of(long).fp32_flops - model.of(short).fp32_flops == 10 * 4 * 8


def test_work_adds_up() -> None:
    assert Work(1, 2, 3) + Work(10, 20, 30) == Work(11, 22, 33)
