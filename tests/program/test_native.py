"""What the native program computes: the oracle's numbers, and the same bits however the work is cut."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from random_programs import make_random_program
from tiny_programs import (
    MAX_MODEL_LEN,
    MAX_NUM_TOKENS,
    Shape,
    make_batch,
    make_native,
    make_oracle,
    make_program,
    make_sample_batch,
    make_weight,
    make_weights,
)

from octavo.cache_spec import CacheDtype
from octavo.formats.gguf_types import GgufType
from octavo.program.builder import ProgramBuilder
from octavo.program.ops import Program

FLOAT_TOLERANCE = 1e-4
"""Largest difference from the oracle in standard deviations of the logits: another order of float32 sums."""
INT8_TOLERANCE = 0.05
"""The same when activations are quantised: a last bit of difference moves a value by one of 127 steps."""

SHAPES = {
    "llama": Shape(),
    "window": Shape(layers=4, window=20),
    "gemma": Shape(layers=4, window=20, gemma_like=True),
}
INT8_SHAPES = {
    "llama": Shape(cache_dtype="int8"),
    "gemma, odd heads": Shape(layers=4, window=20, gemma_like=True, head_dim=22, cache_dtype="int8"),
    "heads of 64": Shape(hidden=256, ffn=256, head_dim=64, cache_dtype="int8"),
}
INT8_CACHE_TOLERANCE = 0.03
"""The same with an int8 cache: a last bit of difference moves an element of a key by one of 127 steps."""
K_SHAPE = Shape(hidden=256, ffn=256, num_heads=4, head_dim=64, num_kv_heads=2)
"""Widths that every format can hold."""
FORMATS = [
    *(GgufType.F32, GgufType.F16, GgufType.BF16, GgufType.Q4_0, GgufType.Q4_1, GgufType.Q5_0, GgufType.Q5_1),
    *(GgufType.Q8_0, GgufType.Q4_K, GgufType.Q5_K, GgufType.Q6_K),
]
STEPS = [[(0, 40), (0, 3), (0, 1)], [(40, 1), (3, 33), (1, 1)], [(41, 1), (36, 1), (2, 40)]]
"""Chunks of three requests, step by step: mixed prefill and decode, across blocks and windows."""


def logits_of(runner: Any, program: Program, steps: list[list[tuple[int, int]]]) -> np.ndarray:
    """Return the logits of every row of every step."""
    results = []
    for chunks in steps:
        batch = make_batch(program, chunks)
        runner.run(batch)
        results.append(runner.logits(np.arange(len(batch.token_ids), dtype=np.int32)))
    return np.concatenate(results)


def oracle_logits(program: Program, weights: Any, steps: list[list[tuple[int, int]]], **options: Any) -> np.ndarray:
    oracle = make_oracle(program, weights, **options)
    results = []
    for chunks in steps:
        batch = make_batch(program, chunks)
        oracle.run_body(batch)
        results.append(oracle.run_head(np.arange(len(batch.token_ids), dtype=np.int32)))
    return np.concatenate(results)


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert np.isfinite(expected).all()
    assert np.abs(actual - expected).max() <= tolerance * expected.std()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_equal_the_oracles(module: ModuleType, shape: Shape) -> None:
    program = make_program(shape)
    weights = make_weights(program, module)
    native = make_native(program, weights, module)
    assert_close(logits_of(native, program, STEPS), oracle_logits(program, weights, STEPS), FLOAT_TOLERANCE)


@pytest.mark.parametrize("shape", INT8_SHAPES.values(), ids=INT8_SHAPES)
def test_logits_with_an_int8_cache_are_close_to_the_oracles(module: ModuleType, shape: Shape) -> None:
    program = make_program(shape)
    weights = make_weights(program, module)
    native = make_native(program, weights, module)
    assert_close(logits_of(native, program, STEPS), oracle_logits(program, weights, STEPS), INT8_CACHE_TOLERANCE)


@pytest.mark.parametrize("shape", INT8_SHAPES.values(), ids=INT8_SHAPES)
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_chunks_of_a_prompt_change_no_bit_of_an_int8_cache(module: ModuleType, shape: Shape, chunk: int) -> None:
    program = make_program(shape)
    weights = make_weights(program, module)
    whole, cut = (make_native(program, weights, module) for _ in range(2))
    steps = [[(start, min(chunk, 67 - start))] for start in range(0, 67, chunk)]
    assert logits_of(whole, program, [[(0, 67)]]).tobytes() == logits_of(cut, program, steps).tobytes()


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_float_activations_with_every_format_equal_the_oracles(module: ModuleType, kind: GgufType) -> None:
    program = make_program(K_SHAPE)
    weights = make_weights(program, module, [kind])
    native = make_native(program, weights, module)
    assert_close(logits_of(native, program, STEPS), oracle_logits(program, weights, STEPS), FLOAT_TOLERANCE)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_int8_activations_with_every_format_are_close_to_the_oracles(module: ModuleType, kind: GgufType) -> None:
    program = make_program(K_SHAPE)
    weights = make_weights(program, module, [kind])
    native = make_native(program, weights, module, activation_quantization=True)
    expected = oracle_logits(program, weights, STEPS, activation_quantization=True)
    assert_close(logits_of(native, program, STEPS), expected, INT8_TOLERANCE)


def test_parts_of_one_weight_may_differ_in_format(module: ModuleType) -> None:
    program = make_program(K_SHAPE)
    weights = make_weights(program, module, [GgufType.Q4_K, GgufType.F16, GgufType.Q6_K, GgufType.Q8_0, GgufType.Q4_1])
    native = make_native(program, weights, module, activation_quantization=True)
    expected = oracle_logits(program, weights, STEPS, activation_quantization=True)
    assert_close(logits_of(native, program, STEPS), expected, INT8_TOLERANCE)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_equal_the_oracle(best_module: ModuleType, seed: int) -> None:
    program = make_random_program(seed)
    weights = make_weights(program, best_module, seed=seed)
    native = make_native(program, weights, best_module)
    assert_close(logits_of(native, program, STEPS), oracle_logits(program, weights, STEPS), FLOAT_TOLERANCE)


def make_mlp(ffn: int, parts: tuple[int, ...], read_again: bool) -> Program:
    """Return a gated product between two others; gated after it instead of in it if somebody else reads it too."""
    b = ProgramBuilder(make_program(K_SHAPE).cache_groups, max_model_len=MAX_MODEL_LEN)
    gate_up = b.linear(b.embedding(make_weight("embed", 101, 256)), make_weight("gate_up", 2 * ffn, 256, parts=parts))
    if read_again:
        b.scale(gate_up, 2.0)
    return b.finish(b.linear(b.gather_rows(b.geglu(gate_up)), make_weight("down", 101, ffn)))


GATED = {"whole": (256, ()), "parts": (160, (160, 160)), "odd": (72, (72, 72))}
"""Width of the gate, and how gate and up are cut in parts."""


@pytest.mark.parametrize("quantize", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize(("ffn", "parts"), GATED.values(), ids=GATED)
def test_a_gate_made_in_its_product_changes_no_bit(
    module: ModuleType, ffn: int, parts: tuple[int, ...], quantize: bool
) -> None:
    up = [GgufType.Q8_0] if parts else []
    kinds = [GgufType.Q4_K, GgufType.Q4_K, *up, GgufType.F32 if ffn % 32 else GgufType.Q8_0]
    options = {"max_num_tokens": 300, "activation_quantization": quantize}
    programs = [make_mlp(ffn, parts, read_again) for read_again in (False, True)]
    fused, after = (make_native(p, make_weights(p, module, kinds), module, **options) for p in programs)
    steps = [[(0, 1)], [(0, 17)], [(0, 100), (0, 100), (0, 90)]]
    assert logits_of(fused, programs[0], steps).tobytes() == logits_of(after, programs[0], steps).tobytes()


@pytest.mark.parametrize("kind", [GgufType.F32, GgufType.Q4_K], ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(module: ModuleType, kind: GgufType, num_threads: int) -> None:
    program = make_program(K_SHAPE)
    weights = make_weights(program, module, [kind])
    two, other = (
        make_native(program, weights, module, num_threads=n, activation_quantization=True) for n in (2, num_threads)
    )
    assert logits_of(two, program, STEPS).tobytes() == logits_of(other, program, STEPS).tobytes()


@pytest.mark.parametrize("quantize", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_chunks_of_a_prompt_change_no_bit(module: ModuleType, quantize: bool, chunk: int) -> None:
    program = make_program(K_SHAPE)
    weights = make_weights(program, module, [GgufType.Q4_K] if quantize else [GgufType.F32])
    whole, cut = (make_native(program, weights, module, activation_quantization=quantize) for _ in range(2))
    steps = [[(start, min(chunk, 67 - start))] for start in range(0, 67, chunk)]
    assert logits_of(whole, program, [[(0, 67)]]).tobytes() == logits_of(cut, program, steps).tobytes()


def test_company_changes_no_bit(module: ModuleType) -> None:
    program = make_program(SHAPES["gemma"])
    weights = make_weights(program, module)
    alone, together = (make_native(program, weights, module) for _ in range(2))
    batch = make_batch(program, [(0, 40), (0, 3), (0, 50)])
    together.run(batch)
    expected = together.logits(np.arange(40, dtype=np.int32))
    alone.run(make_batch(program, [(0, 40)]))
    assert alone.logits(np.arange(40, dtype=np.int32)).tobytes() == expected.tobytes()


def test_the_head_runs_in_slices_and_in_any_order_of_rows(module: ModuleType) -> None:
    program = make_program()
    native = make_native(program, make_weights(program, module), module)
    native.run(make_batch(program, [(0, MAX_NUM_TOKENS)]))
    in_order = native.logits(np.arange(MAX_NUM_TOKENS, dtype=np.int32))
    rows = np.random.default_rng(0).integers(0, MAX_NUM_TOKENS, 3 * module.HEAD_SLICE + 5).astype(np.int32)
    assert native.logits(rows).tobytes() == in_order[rows].tobytes()


def test_sampling_takes_the_largest_logit_of_each_row(module: ModuleType) -> None:
    program = make_program()
    native = make_native(program, make_weights(program, module), module)
    native.run(make_batch(program, [(0, MAX_NUM_TOKENS)]))
    rows = list(range(MAX_NUM_TOKENS))
    output = native.sample(make_sample_batch(rows))
    assert output.results["status"].tolist() == [0] * len(rows)
    assert output.results["token_id"].tolist() == native.logits(np.array(rows, np.int32)).argmax(axis=1).tolist()


def test_weights_that_are_not_numbers_do_no_harm(module: ModuleType) -> None:
    program = make_program()
    weights = make_weights(program, module)
    weights.vectors["norm"][:] = np.nan
    native = make_native(program, weights, module)
    native.run(make_batch(program, [(0, 5)]))
    output = native.sample(make_sample_batch([0, 4]))
    assert output.results["status"].tolist() == [1, 1]


@pytest.mark.parametrize("cache_dtype", ["float16", "int8"])
def test_values_too_large_for_the_cache_are_counted(module: ModuleType, cache_dtype: CacheDtype) -> None:
    program = make_program(Shape(cache_dtype=cache_dtype))
    weights = make_weights(program, module)
    for layer in range(2):
        weights.vectors[f"layers.{layer}.qkv.bias"][-1] = 1e5
    native = make_native(program, weights, module)
    native.run(make_batch(program, [(0, 5)]))
    assert native.num_saturated == 2 * 5
