"""The entry point `pool`: hidden states after the final norm, added up in order; and scores of listed tokens."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from tiny_programs import (
    MAX_NUM_TOKENS,
    Shape,
    make_batch,
    make_native,
    make_oracle,
    make_program,
    make_sample_batch,
    make_weights,
)

from octavo.formats.gguf_types import GgufType
from octavo.program.native import NativeProgram
from octavo.program.ops import Program

FLOAT_TOLERANCE = 1e-4
"""Of the hidden states' deviation: another order of float32 sums."""
STEPS = [[(0, 40), (0, 3), (0, 1)], [(40, 1), (3, 33), (1, 1)]]
SHAPES = {
    "llama": Shape(),
    "odd width": Shape(hidden=100, ffn=64, head_dim=20),
    "gemma": Shape(layers=4, window=20, gemma_like=True),
}


def states_of(native: NativeProgram, num_rows: int, width: int) -> np.ndarray:
    """Return the hidden state of each row, which is a sum of one."""
    sums = np.zeros((num_rows, width))
    rows = np.arange(num_rows, dtype=np.int32)
    native.pool(rows, rows, sums)
    return sums


@pytest.fixture
def program() -> Program:
    return make_program()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_hidden_states_equal_the_oracles(module: ModuleType, shape: Shape) -> None:
    program = make_program(shape)
    weights = make_weights(program, module)
    native, oracle = make_native(program, weights, module), make_oracle(program, weights)
    for chunks in STEPS:
        batch = make_batch(program, chunks)
        native.run(batch)
        oracle.run_body(batch)
        expected = oracle.run_pool(np.arange(len(batch.token_ids), dtype=np.int32))
        actual = states_of(native, len(batch.token_ids), shape.hidden)
        assert np.abs(actual - expected).max() <= FLOAT_TOLERANCE * expected.std()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_rows_are_added_one_after_the_other_whatever_the_number_of_threads(
    module: ModuleType, program: Program, num_threads: int
) -> None:
    native = make_native(program, make_weights(program, module), module, num_threads=num_threads)
    native.run(make_batch(program, [(0, MAX_NUM_TOKENS)]))
    states = states_of(native, MAX_NUM_TOKENS, program.hidden_size)
    targets = (np.arange(MAX_NUM_TOKENS) % 3).astype(np.int32)
    expected = np.full((4, program.hidden_size), 0.1)
    actual = expected.copy()
    for target, state in zip(targets, states, strict=True):
        expected[target] += state
    native.pool(np.arange(MAX_NUM_TOKENS, dtype=np.int32), targets, actual)
    assert actual.tobytes() == expected.tobytes()


def test_rows_may_be_chosen_in_any_order_and_more_than_once(module: ModuleType, program: Program) -> None:
    native = make_native(program, make_weights(program, module), module)
    native.run(make_batch(program, [(0, 70)]))
    states = states_of(native, 70, program.hidden_size)
    rows = np.array([5, 69, 5, 0] * 20, np.int32)  # two slices
    sums = np.zeros((len(rows), program.hidden_size))
    native.pool(rows, np.arange(len(rows), dtype=np.int32), sums)
    assert sums.tobytes() == states[rows].tobytes()


@pytest.mark.parametrize("kind", [GgufType.F16, GgufType.Q4_K, GgufType.Q8_0], ids=lambda kind: kind.name)
def test_the_pool_gives_floats_where_the_head_reads_int8(module: ModuleType, kind: GgufType) -> None:
    program = make_program(Shape(hidden=256, ffn=256, head_dim=64))
    weights = make_weights(program, module, [kind])
    native = make_native(program, weights, module, activation_quantization=True)
    oracle = make_oracle(program, weights, activation_quantization=True)
    batch = make_batch(program, [(0, 33)])
    native.run(batch)
    oracle.run_body(batch)
    expected = oracle.run_pool(np.arange(33, dtype=np.int32))
    assert np.abs(states_of(native, 33, 256) - expected).max() <= 0.05 * expected.std()


def test_pool_and_head_may_take_turns(module: ModuleType, program: Program) -> None:
    native = make_native(program, make_weights(program, module), module)
    native.run(make_batch(program, [(0, 20)]))
    rows = np.arange(20, dtype=np.int32)
    logits, states = native.logits(rows), states_of(native, 20, program.hidden_size)
    assert native.logits(rows).tobytes() == logits.tobytes()
    assert states_of(native, 20, program.hidden_size).tobytes() == states.tobytes()


def test_stages_are_timed_without_those_of_the_pool(module: ModuleType, program: Program) -> None:
    native = make_native(program, make_weights(program, module), module)
    native.time_stages(True)
    native.run(make_batch(program, [(0, 20)]))
    states_of(native, 20, program.hidden_size)
    assert len(native.stage_seconds()) == len(native.stage_ops) + 1


@pytest.mark.parametrize(
    ("rows", "targets", "shape", "message"),
    [
        ([5], [0], (1, 96), "a logit row must be in"),
        ([-1], [0], (1, 96), "a logit row must be in"),
        ([0], [1], (1, 96), "the sum of a row must be in"),
        ([0], [-1], (1, 96), "the sum of a row must be in"),
        ([0], [0, 0], (1, 96), "the number of targets must be 1"),
        ([0], [0], (1, 95), "the columns of the sums must be 96"),
    ],
    ids=lambda value: str(value),
)
def test_indices_that_point_outside_are_refused(
    best_module: ModuleType, program: Program, rows: list[int], targets: list[int], shape: tuple[int, int], message: str
) -> None:
    native = make_native(program, make_weights(program, best_module), best_module)
    native.run(make_batch(program, [(0, 5)]))
    with pytest.raises(ValueError, match=message):
        native.pool(np.array(rows, np.int32), np.array(targets, np.int32), np.zeros(shape))


def test_a_program_without_a_pool_says_so(best_module: ModuleType, program: Program) -> None:
    without = replace(program, pool=(), pooled=None)
    weights = make_weights(without, best_module)
    native, oracle = make_native(without, weights, best_module), make_oracle(without, weights)
    batch = make_batch(without, [(0, 5)])
    native.run(batch)
    oracle.run_body(batch)
    rows = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="no pool"):
        native.pool(rows, rows, np.zeros((1, 96)))
    with pytest.raises(ValueError, match="no pool"):
        oracle.run_pool(rows)


def test_rows_of_a_step_that_has_not_run_are_refused(best_module: ModuleType, program: Program) -> None:
    native = make_native(program, make_weights(program, best_module), best_module)
    rows = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="a logit row"):
        native.pool(rows, rows, np.zeros((1, 96)))


def test_listed_tokens_are_scored_beside_the_best(module: ModuleType, program: Program) -> None:
    native = make_native(program, make_weights(program, module), module)
    native.run(make_batch(program, [(0, 9)]))
    logits = native.logits(np.arange(9, dtype=np.int32)).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    batch = make_sample_batch([3, 8])
    batch.score_ids = np.array([7, 100, -1, 0, 7], np.int32)
    batch.choices["num_logprobs"], batch.max_logprobs = 2, 2
    batch.choices["first_score"], batch.choices["num_scores"] = [0, 3], [3, 2]
    output = native.sample(batch)
    wanted = [expected[3, 7], expected[3, 100], -np.inf, expected[8, 0], expected[8, 7]]
    assert output.scores == pytest.approx(wanted, rel=1e-5)
    assert output.top_ids.tolist() == np.argsort(-expected[[3, 8]], axis=1)[:, :2].tolist()


@pytest.mark.parametrize(
    ("first", "count", "ids", "message"),
    [
        (0, 2, [1], "a number of scores"),
        (2, 0, [1], "a first score"),
        (0, 1, [101], "a token id to score"),
        (0, 1, [-2], "a token id to score"),
    ],
    ids=lambda value: str(value),
)
def test_scores_that_point_outside_are_refused(
    best_module: ModuleType, program: Program, first: int, count: int, ids: list[int], message: str
) -> None:
    native = make_native(program, make_weights(program, best_module), best_module)
    native.run(make_batch(program, [(0, 5)]))
    batch = make_sample_batch([0])
    batch.score_ids = np.array(ids, np.int32)
    batch.choices["first_score"], batch.choices["num_scores"] = first, count
    with pytest.raises(ValueError, match=message):
        native.sample(batch)
