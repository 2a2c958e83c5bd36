"""Ops of one kind alone, and steps without an engine: on tiny programs of random weights."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import open_tiny

from octavo.models.decoder import build_program
from octavo.native import kernels
from octavo.program.cost import StepShape
from octavo.program.moe_ops import Moe
from octavo.program.ops import Embedding, Linear, Program
from octavo.runner.isolation import isolate, op_classes
from octavo.runner.step_timer import StepTimer, cache_pools, make_forward_batch
from octavo.weights.store import WeightStore, load_weights

NUM_LAYERS = 3
SHAPES = [StepShape([1, 1], [20, 33], 2), StepShape([24], [24], 1)]


def load_tiny(name: str) -> tuple[Program, WeightStore]:
    tiny = open_tiny(name)
    program = build_program(tiny.spec, max_model_len=64, block_size=16, cache_dtype="float16")
    return program, load_weights(program, tiny.checkpoint, pack=kernels().PackedMatrix.pack)


@pytest.fixture(scope="module")
def model() -> tuple[Program, WeightStore]:
    """The tiny Llama: three layers."""
    return load_tiny("llama")


def test_classes_hold_every_op_but_the_gathering_once(model: tuple[Program, WeightStore]) -> None:
    program, weights = model
    classes = op_classes(program, weights)
    assert sum(len(entry.ops) for entry in classes) == len(program.body) + len(program.head) - 1
    described = {(entry.kind, entry.shape, entry.format): len(entry.ops) for entry in classes}
    assert described[("linear", "320x64", "F32")] == NUM_LAYERS
    assert described[("rms_norm", "64", "")] == 2 * NUM_LAYERS + 1
    assert described[("linear", "2048x64", "F32")] == 1
    assert described[("paged_attention", "64", "")] == NUM_LAYERS


def test_an_isolated_class_keeps_its_weights_and_reads_rows_that_exist(model: tuple[Program, WeightStore]) -> None:
    program, weights = model
    for entry in op_classes(program, weights):
        isolated, own = isolate(program, weights, entry.ops)
        written = set()
        for op in isolated.body:
            assert all(value.id in written for value in op.inputs)
            written.update(value.id for value in op.outputs)
        assert [op.weights for op in isolated.body][-len(entry.ops) :] == [op.weights for op in entry.ops]
        assert all(weight.name in own.matrices for weight in isolated.weights if weight.is_matrix)


def test_products_of_one_class_all_read_the_same_rows(model: tuple[Program, WeightStore]) -> None:
    program, weights = model
    products = next(entry for entry in op_classes(program, weights) if entry.shape == "320x64")
    isolated, _ = isolate(program, weights, products.ops)
    (source,) = [op.outputs[0] for op in isolated.body if isinstance(op, Embedding)]
    assert {op.inputs[0] for op in isolated.body if isinstance(op, Linear)} == {source}


def test_every_class_runs_in_steps_of_every_shape(model: tuple[Program, WeightStore]) -> None:
    program, weights = model
    pools = cache_pools(program.cache_groups, SHAPES)
    for entry in op_classes(program, weights):
        isolated, own = isolate(program, weights, entry.ops)
        with StepTimer(isolated, own, shapes=SHAPES, pools=pools, num_threads=2, has_head=False) as timer:
            for shape in SHAPES:
                runs = timer.seconds(shape, at_least=0.0)
                assert len(runs) == 2
                assert min(runs) > 0


def test_a_whole_program_runs_with_its_head(model: tuple[Program, WeightStore]) -> None:
    program, weights = model
    pools = cache_pools(program.cache_groups, SHAPES)
    with StepTimer(program, weights, shapes=SHAPES, pools=pools, num_threads=2) as timer:
        assert len(timer.seconds(SHAPES[0], at_least=1.0, max_runs=3)) == 3


def test_a_step_is_laid_out_in_blocks_of_its_own_requests(model: tuple[Program, WeightStore]) -> None:
    program, _ = model
    batch = make_forward_batch(program.cache_groups, StepShape([1, 3], [20, 33], 2), 3)
    assert batch.token_ids.tolist() == [0, 1, 2, 0]
    assert batch.positions.tolist() == [19, 30, 31, 32]
    assert batch.query_start_loc.tolist() == [0, 1, 4]
    (table,), slots = batch.tables.blocks, batch.slots(0, 16)
    assert table.shape == (2, 3)
    assert sorted(table.ravel().tolist()) == list(range(6))
    assert slots.tolist() == [
        table[0, 1] * 16 + 3, table[1, 1] * 16 + 14, table[1, 1] * 16 + 15, table[1, 2] * 16,
    ]  # fmt: skip


def test_a_cache_is_filled_with_numbers(model: tuple[Program, WeightStore]) -> None:
    program, _ = model
    (pool,) = cache_pools(program.cache_groups, SHAPES)
    assert np.isfinite(pool.view(np.float16)).all()


def test_isolated_experts_are_chosen_with_equal_chances() -> None:
    program, weights = load_tiny("qwen3_moe")
    mixture = next(entry for entry in op_classes(program, weights) if entry.kind == "moe")
    isolated, own = isolate(program, weights, mixture.ops)
    moe = next(op for op in isolated.body if isinstance(op, Moe))
    lookup = next(op for op in isolated.body if isinstance(op, Embedding) and op.outputs[0] == moe.inputs[1])
    (table,) = own.matrices[lookup.weights[0].name]
    choices = table.dequantize_rows(np.arange(table.N, dtype=np.int32))  # type: ignore[attr-defined]
    assert choices.shape == (table.N, moe.top_k)
    assert all(len(set(row)) == moe.top_k for row in choices.tolist())
    counts = np.bincount(choices.ravel().astype(np.int64), minlength=moe.num_experts)
    assert len(counts) == moe.num_experts
    assert counts == pytest.approx(choices.size / moe.num_experts, rel=0.25)
    assert moe.inputs[2] != moe.inputs[1]


def test_every_class_of_a_mixture_runs_in_steps_of_every_shape() -> None:
    program, weights = load_tiny("qwen3_moe")
    pools = cache_pools(program.cache_groups, SHAPES)
    for entry in op_classes(program, weights):
        isolated, own = isolate(program, weights, entry.ops)
        with StepTimer(isolated, own, shapes=SHAPES, pools=pools, num_threads=2, has_head=False) as timer:
            assert all(min(timer.seconds(shape, at_least=0.0)) > 0 for shape in SHAPES)
