"""The largest logits of an 8-bit head, found by estimates: the same tokens, bit for bit, as from all logits."""

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tiny_programs import MAX_NUM_TOKENS, Shape, Weights, make_batch, make_native, make_program, make_weights

from octavo.formats.gguf_types import GgufType
from octavo.program.forward_batch import EDIT_DTYPE, SampleBatch, greedy_choices
from octavo.program.native import NativeProgram
from octavo.program.ops import Program
from octavo.weights.packing import NATIVE_FORMATS

NO_CHANGE = np.array([(0, 0.0, 1.0, 0.0)], EDIT_DTYPE)
"""An edit that leaves its logit as it is, but makes all logits of its row needed."""


def make_model(module: ModuleType, vocab: int, seed: int = 0, **options: Any) -> tuple[Program, Weights, NativeProgram]:
    program = make_program(Shape(vocab=vocab))
    weights = make_weights(program, module, [GgufType.Q8_0], seed)
    return program, weights, make_native(program, weights, module, activation_quantization=True, **options)


def set_head(weights: Weights, module: ModuleType, q: np.ndarray, scales: np.ndarray) -> None:
    """Make the table of embeddings, which is the head, of int8 values [V, E] and scales [V, E / 32]."""
    blocks = np.zeros((*scales.shape, 34), np.uint8)
    blocks[..., :2] = scales.astype(np.float16)[..., None].view(np.uint8)
    blocks[..., 2:] = q.reshape(*scales.shape, 32).view(np.uint8)
    rows = blocks.reshape(len(q), -1)
    weights.matrices["embed"] = (module.PackedMatrix.pack(NATIVE_FORMATS[GgufType.Q8_0], [rows], *q.shape),)


def choose(native: NativeProgram, rows: int, *, all_logits: bool, **options: Any) -> list[Any]:
    choices = greedy_choices(np.arange(rows))
    choices["position"] = np.arange(rows)
    for name, value in options.items():
        choices[name] = value
    if all_logits:
        choices["num_edits"] = 1
    results: list[Any] = native.sample(SampleBatch(choices, -1, NO_CHANGE)).results[["token_id", "status"]].tolist()
    return results


def assert_same_tokens(native: NativeProgram, rows: int, *, screened: bool = True, **options: Any) -> list[Any]:
    """Choose from the largest logits and from all of them; `screened`: whether estimates are to serve the former."""
    before = native.num_screened
    few = choose(native, rows, all_logits=False, **options)
    assert native.num_screened - before == (rows if screened else 0)
    assert few == choose(native, rows, all_logits=True, **options)
    assert native.num_screened - before == (rows if screened else 0)
    return few


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("vocab", [16, 101, 1000, 4096])
def test_the_largest_logit_is_found(module: ModuleType, vocab: int, rows: int) -> None:
    for seed in range(3):
        program, _, native = make_model(module, vocab, seed)
        for start in range(5):
            native.run(make_batch(program, [(0, 10 + start)], seed=start))
            assert_same_tokens(native, rows)


@pytest.mark.parametrize(("vocab", "top_k"), [(101, 1), (101, 7), (4096, 1), (4096, 5), (20_000, 20)])
def test_tokens_drawn_from_the_largest_are_the_same(module: ModuleType, vocab: int, top_k: int) -> None:
    program, _, native = make_model(module, vocab)
    for seed in range(8):
        native.run(make_batch(program, [(0, 10)], seed=seed))
        options = {"temperature": 1.5, "top_k": top_k, "top_p": 0.9 if seed % 2 else 1.0, "min_p": 0.01 * (seed % 3)}
        assert_same_tokens(native, 4, seed=seed, **options)


def test_a_whole_slice_of_rows_is_screened_where_six_bits_are_faster(best_module: ModuleType) -> None:
    program, _, native = make_model(best_module, 4096)
    native.run(make_batch(program, [(0, MAX_NUM_TOKENS)]))
    if best_module.isa == "avx512":
        pytest.skip("only steps of few rows are screened there")
    assert_same_tokens(native, 64)


def make_alike(module: ModuleType, vocab: int) -> tuple[Program, NativeProgram]:
    """A head whose rows have the same upper bits."""
    program, weights, _ = make_model(module, vocab)
    rng = np.random.default_rng(0)
    q = rng.integers(-32, 32, (1, 96)) * 4 + rng.integers(0, 4, (vocab, 96))
    set_head(weights, module, q.astype(np.int8), np.full((vocab, 3), 0.01))
    return program, make_native(program, weights, module, activation_quantization=True)


def test_logits_that_differ_in_the_low_bits_only_are_told_apart(module: ModuleType) -> None:
    program, native = make_alike(module, 1000)
    for seed in range(10):
        native.run(make_batch(program, [(0, 4)], seed=seed))
        assert_same_tokens(native, 4)
        assert_same_tokens(native, 4, temperature=1.0, top_k=20, seed=seed)


def test_estimates_that_tell_too_little_are_given_up_for_a_while(best_module: ModuleType) -> None:
    program, native = make_alike(best_module, 4096)
    native.run(make_batch(program, [(0, 4)]))
    for _ in range(20):
        assert_same_tokens(native, 4, screened=False)


def test_the_first_of_equal_logits_is_chosen(module: ModuleType) -> None:
    program, weights, _ = make_model(module, 1000)
    q = np.random.default_rng(1).integers(-128, 128, (50, 96)).astype(np.int8)
    set_head(weights, module, np.tile(q, (20, 1)), np.full((1000, 3), 0.01))
    native = make_native(program, weights, module, activation_quantization=True)
    native.run(make_batch(program, [(0, 4)]))
    assert all(token_id < 50 for token_id, _ in assert_same_tokens(native, 4))


@pytest.mark.parametrize("scale", [np.inf, np.nan, -np.inf])
def test_a_scale_that_is_not_a_number_is_noticed(module: ModuleType, scale: float) -> None:
    program, weights, _ = make_model(module, 1000)
    q = np.random.default_rng(1).integers(-128, 128, (1000, 96)).astype(np.int8)
    scales = np.full((1000, 3), 0.01)
    scales[700, 1] = scale
    set_head(weights, module, q, scales)
    native = make_native(program, weights, module, activation_quantization=True)
    native.run(make_batch(program, [(0, 4)]))
    results = assert_same_tokens(native, 4, screened=False)
    assert {status for _, status in results} == ({1} if np.isnan(scale) else {0, 1})


def test_hidden_states_of_zeros_choose_the_first_token(module: ModuleType) -> None:
    program, weights, _ = make_model(module, 1000)
    weights.vectors["norm"] = np.zeros_like(weights.vectors["norm"])
    native = make_native(program, weights, module, activation_quantization=True)
    native.run(make_batch(program, [(0, 4)]))
    assert assert_same_tokens(native, 4, screened=False) == [(0, 0)] * 4


def test_rows_that_need_more_than_the_largest_logits_get_all(best_module: ModuleType) -> None:
    program, _, native = make_model(best_module, 101)
    native.run(make_batch(program, [(0, 4)]))
    for name, value in [("num_logprobs", 0), ("forced_token", 3), ("temperature", 1.0)]:
        choices = greedy_choices([0])
        choices[name] = value
        native.sample(SampleBatch(choices, int(choices["num_logprobs"][0])))
    assert native.num_screened == 0


def test_a_head_of_another_format_is_not_screened(best_module: ModuleType) -> None:
    program = make_program(Shape(vocab=101))
    weights = make_weights(program, best_module, [GgufType.Q5_0])
    native = make_native(program, weights, best_module, activation_quantization=True)
    native.run(make_batch(program, [(0, 4)]))
    native.sample(SampleBatch(greedy_choices([0]), -1))
    assert native.num_screened == 0


def test_counts_can_be_read_while_a_call_runs(best_module: ModuleType) -> None:
    program, _, native = make_model(best_module, 4096, num_threads=2)
    native.run(make_batch(program, [(0, 10)]))

    def choose_often() -> None:
        for _ in range(100):
            choose(native, 1, all_logits=False)

    thread = threading.Thread(target=choose_often)
    seen = [native.num_screened]
    thread.start()
    while thread.is_alive():
        seen.append(native.num_screened)
    thread.join()
    assert seen == sorted(seen)
    assert native.num_screened == 100
