"""The oracle's ops, each against its definition in plain Python and double precision."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
import pytest
from tiny_models import Chunk, make_batch

from octavo.cache_spec import AttentionGroupSpec, CacheDtype
from octavo.program.builder import ProgramBuilder
from octavo.program.ops import CacheRef, Gate, Program, RopeTable, Weight, WeightPart
from octavo.program.reference import (
    ReferenceCache,
    ReferenceExecutor,
    ReferenceWeights,
    gated_mul,
    kv_write,
    quantize_activations,
    rms_norm,
    rope,
    round_to_dtype,
)
from octavo.program.rope_table import build_rope_table

Floats = npt.NDArray[np.float32]
KVH, D, E, V = 2, 4, 16, 32
MAX_ERROR = 1e-6
"""Relative to values near 1: a few float32 roundings."""


def make_rows(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_spec(dtype: CacheDtype = "float32", window: int | None = None) -> AttentionGroupSpec:
    return AttentionGroupSpec("full" if window is None else "sliding", 1, KVH, D, dtype, 16, window)


def make_weight(name: str, *shape: int) -> Weight:
    return Weight(name, shape, (WeightPart(name, shape[0]),))


def make_attention(window: int | None = None, softcap: float | None = None) -> tuple[Program, ReferenceWeights]:
    """Return a program that is little more than attention: 4 query heads, and q, k, v as embeddings of the token."""
    b = ProgramBuilder([make_spec(window=window)], max_model_len=64)
    x = b.embedding(make_weight("embed", V, E))
    q, k, v = b.linear_split(x, make_weight("qkv", 32, E), [16, 8, 8])
    b.kv_write(k, v, CacheRef(0, 0))
    out = b.paged_attention(q, CacheRef(0, 0), scale=0.7, window=window, softcap=softcap)
    program = b.finish(b.gather_rows(out))
    return program, ReferenceWeights({"embed": make_rows(V, E), "qkv": make_rows(32, E, seed=1) / 4})


def dense_attention(token_ids: list[int], weights: ReferenceWeights, window: int, softcap: float | None) -> Floats:
    """Compute the same in double precision, one pair of positions at a time, without a cache."""
    x = weights.values["embed"][token_ids].astype(np.float64) @ weights.values["qkv"].T.astype(np.float64)
    q, k, v = x[:, :16].reshape(-1, 4, D), x[:, 16:24].reshape(-1, KVH, D), x[:, 24:].reshape(-1, KVH, D)
    out = np.zeros((len(token_ids), 4, D))
    for i in range(len(token_ids)):
        for head in range(4):
            seen = range(max(0, i - window + 1), i + 1)
            scores = [0.7 * float(q[i, head] @ k[j, head // 2]) for j in seen]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            shares = [math.exp(score) for score in scores]
            out[i, head] = sum(share * v[j, head // 2] for share, j in zip(shares, seen, strict=True)) / sum(shares)
    return out.reshape(-1, 16).astype(np.float32)


@pytest.mark.parametrize("window", [None, 5], ids=["full", "window"])
@pytest.mark.parametrize("softcap", [None, 2.0], ids=["plain", "softcap"])
def test_attention_over_blocks_is_dense_attention(window: int | None, softcap: float | None) -> None:
    program, weights = make_attention(window, softcap)
    executor = ReferenceExecutor(program, weights, [5])
    token_ids = np.random.default_rng(2).integers(0, V, 37).tolist()
    blocks = [[4, 1, 2]]
    executor.run_body(make_batch(program, [Chunk(0, token_ids[:19], blocks)]))
    hidden = executor.run_body(make_batch(program, [Chunk(19, token_ids[19:], blocks)]))
    expected = dense_attention(token_ids, weights, window or len(token_ids), softcap)[19:]
    assert np.abs(hidden - expected).max() < 1e-5


def test_head_returns_the_asked_rows_also_twice() -> None:
    program, weights = make_attention()
    executor = ReferenceExecutor(program, weights, [2])
    hidden = executor.run_body(make_batch(program, [Chunk(0, [3, 1, 4], [[1]])]))
    logits = executor.run_head(np.array([2, 0, 2], dtype=np.int32))
    assert logits.tolist() == hidden[[2, 0, 2]].tolist()


def test_keys_and_values_lie_at_their_slots() -> None:
    cache = ReferenceCache(make_spec(), num_blocks=3)
    k, v = make_rows(3, KVH * D), make_rows(3, KVH * D, seed=1)
    kv_write(cache, 0, k, v, np.array([37, 16, 5], dtype=np.int64))
    assert cache.k[2, 0, 5].reshape(-1).tolist() == k[0].tolist()
    assert cache.v[0, 0, 5].reshape(-1).tolist() == v[2].tolist()
    assert np.count_nonzero(cache.k) == 3 * KVH * D


def test_float16_cache_saturates_and_rounds_to_even() -> None:
    values = np.array([1e6, -1e6, np.inf, 65504.0, 65519.0, 2049.0, 2051.0, np.nan], dtype=np.float32)
    rounded = round_to_dtype(values, "float16")
    assert rounded[:7].tolist() == [65504.0, -65504.0, 65504.0, 65504.0, 65504.0, 2048.0, 2052.0]
    assert np.isnan(rounded[7])


def test_bfloat16_cache_rounds_to_even() -> None:
    bits = [0x3F800000, 0x3F808000, 0x3F818000, 0x3F80C000, 0xBF807FFF]
    values = np.array([struct.unpack("<f", struct.pack("<I", b))[0] for b in bits], dtype=np.float32)
    rounded = round_to_dtype(values, "bfloat16").view(np.uint32)
    assert rounded.tolist() == [0x3F800000, 0x3F800000, 0x3F820000, 0x3F810000, 0xBF800000]


def test_int8_cache_rounds_in_a_basis_that_spreads_outliers() -> None:
    values = np.array([[100, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=np.float32)  # pairs: sums and differences
    rounded = round_to_dtype(values, "int8")
    step = np.float32(101) / np.float32(127)
    expected = [(101 + 124 * step) / 2, (101 - 124 * step) / 2, 0, 0, 0, 0]  # 99 is 124.48 steps
    assert rounded[0] == pytest.approx(expected, abs=1e-4)
    assert not rounded[1].any()


def test_int8_cache_saturates_and_keeps_nan_to_its_vector() -> None:
    values = make_rows(3, 64)
    values[0, 3], values[1, 5] = np.inf, np.nan
    rounded = round_to_dtype(values, "int8")
    assert rounded[0, 3] == pytest.approx(65504, rel=1e-3)
    assert np.isnan(rounded[1]).all()
    assert np.abs(rounded[2] - values[2]).max() < 0.03


def test_float32_cache_keeps_every_bit() -> None:
    values = make_rows(10)
    assert round_to_dtype(values, "float32").tobytes() == values.tobytes()


def test_rms_norm_is_its_formula_for_each_head() -> None:
    x, weight = make_rows(3, 8), make_rows(4, seed=1)
    expected = []
    for row in x.astype(np.float64).reshape(3, 2, 4):
        for head in row:
            root = math.sqrt(sum(value * value for value in head) / 4 + 0.01)
            expected += [value / root * w for value, w in zip(head, weight, strict=True)]
    assert rms_norm(x, weight, 0.01).reshape(-1).tolist() == pytest.approx(expected, rel=MAX_ERROR)


def test_rope_turns_each_pair_by_its_angle() -> None:
    table = build_rope_table(RopeTable("rope", (1.0, 0.25), 1.0, 64))[[3, 50]]
    x = make_rows(2, 2 * 6)  # two heads of 6 dims, of which 4 turn
    y = rope(x, table, 6, interleaved=False).reshape(2, 2, 6)
    for row, position in enumerate((3, 50)):
        for head, values in enumerate(x.reshape(2, 2, 6)[row].astype(np.float64)):
            turned = [complex(values[i], values[i + 2]) * np.exp(1j * position * w) for i, w in enumerate((1.0, 0.25))]
            expected = [turned[0].real, turned[1].real, turned[0].imag, turned[1].imag, values[4], values[5]]
            assert y[row, head].tolist() == pytest.approx(expected, abs=MAX_ERROR)


def test_interleaved_rope_is_half_split_rope_of_reordered_dims() -> None:
    table = build_rope_table(RopeTable("rope", (1.0, 0.25), 1.0, 64))[[7]]
    x = make_rows(1, 4)
    order = [0, 2, 1, 3]  # dims i and i + half become neighbours
    assert (
        rope(x[:, order], table, 4, interleaved=True).tolist()
        == rope(x, table, 4, interleaved=False)[:, order].tolist()
    )


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gated_mul_is_its_formula(gate: Gate) -> None:
    x = 3 * make_rows(4, 10)
    expected = []
    for row in x.astype(np.float64):
        for a, b in zip(row[:5], row[5:], strict=True):
            tanh = math.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))
            expected.append((a / (1 + math.exp(-a)) if gate == "silu" else a * (1 + tanh) / 2) * b)
    assert gated_mul(x, gate).reshape(-1).tolist() == pytest.approx(expected, rel=1e-5, abs=MAX_ERROR)


def test_elementwise_ops_and_bias_are_applied() -> None:
    b = ProgramBuilder([], max_model_len=64)
    x = b.embedding(make_weight("embed", V, E), scale=2.0)
    y = b.linear(x, make_weight("w", E, E), bias=make_weight("b", E), add_to=x)
    z = b.softcap(b.scale(b.mul(b.add(x, y), x), 0.5), 3.0)
    program = b.finish(b.gather_rows(z))
    values = {"embed": make_rows(V, E), "w": make_rows(E, E, seed=1), "b": make_rows(E, seed=2)}
    hidden = ReferenceExecutor(program, ReferenceWeights(values), []).run_body(make_batch(program, [Chunk(0, [7], [])]))
    embed, w, bias = (values[name].astype(np.float64) for name in ("embed", "w", "b"))
    x_row = 2 * embed[7]
    y_row = w @ x_row + bias + x_row
    assert hidden[0].tolist() == pytest.approx((3 * np.tanh((x_row + y_row) * x_row / 2 / 3)).tolist(), rel=1e-4)


def test_quantized_activations_are_the_nearest_of_255_steps_of_their_group() -> None:
    x = make_rows(5, 96) * np.repeat([1.0, 100.0, 1e-3], 32).astype(np.float32)
    rounded = quantize_activations(x)
    for row, (values, result) in enumerate(zip(x.reshape(15, 32), rounded.reshape(15, 32), strict=True)):
        step = np.abs(values).max() / 127
        assert np.abs(values - result).max() <= 0.5001 * step, row
        assert np.abs(result / step - np.rint(result / step)).max() < 1e-4
        assert np.abs(result).max() == pytest.approx(np.abs(values).max())


def test_half_a_step_rounds_to_even_and_zeros_stay_zero() -> None:
    row = np.zeros((1, 64), dtype=np.float32)
    row[0, :5] = [127.0, 0.5, 1.5, 2.5, -0.5]
    assert quantize_activations(row)[0, :6].tolist() == [127.0, 0.0, 2.0, 2.0, 0.0, 0.0]
    assert not quantize_activations(row)[0, 32:].any()


def test_only_products_with_quantized_weights_take_quantized_activations() -> None:
    b = ProgramBuilder([], max_model_len=64)
    parts = (WeightPart("plain", 8), WeightPart("packed", 8))
    x = b.embedding(make_weight("embed", V, 32))
    y = b.linear(x, Weight("w", (16, 32), parts))
    program = b.finish(b.gather_rows(y))
    w = make_rows(8, 32, seed=1)
    weights = ReferenceWeights({"embed": make_rows(V, 32), "plain": w, "packed": w}, frozenset({"packed"}))
    batch = make_batch(program, [Chunk(0, [7], [])])
    exact = ReferenceExecutor(program, weights, []).run_body(batch)[0]
    rounded = ReferenceExecutor(program, weights, [], activation_quantization=True).run_body(batch)[0]
    assert exact[:8].tolist() == exact[8:].tolist() == rounded[:8].tolist()
    assert rounded[8:].tolist() == pytest.approx(
        (quantize_activations(weights.values["embed"][[7]]) @ w.T)[0], abs=1e-5
    )
    assert rounded[8:].tolist() != exact[8:].tolist()
