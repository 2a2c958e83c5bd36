"""kv_write: where each value lands, rounding, saturation, what is left alone, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged_cache import DTYPES, FLOAT_DTYPES, PagedCache, fill_cache, make_cache, rotate, round_to, unrotate

from octavo.cache_spec import AttentionGroupSpec, CacheDtype


def as_floats(cache: PagedCache, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if cache.dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80])
@pytest.mark.parametrize("block_size", [16, 64])
def test_each_value_lands_where_the_layout_says(kernels: Any, dtype: str, head_dim: int, block_size: int) -> None:
    rng = np.random.default_rng(1)
    lengths = [1, 15, 16, 70]
    cache = make_cache(rng, lengths, block_size=block_size, head_dim=head_dim, dtype=dtype, layer_offset=192)
    fill_cache(kernels, rng, cache, lengths)
    keys, values = (as_floats(cache, part) for part in cache.layer())
    for r, length in enumerate(lengths):
        for position in range(length):
            block, offset = cache.tables[r, position // block_size], position % block_size
            for head in range(cache.num_kv_heads):
                k, v = keys[block, offset // 16, head, :, offset % 16], values[block, offset // 16, head, offset % 16]
                assert np.array_equal(k, cache.keys[r][position, head])
                assert np.array_equal(v, cache.values[r][position, head])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_nothing_but_the_given_slots_is_written(kernels: Any, dtype: str) -> None:
    rng = np.random.default_rng(2)
    cache = make_cache(rng, [40], dtype=dtype, layer_offset=64)
    before = cache.pool.copy()
    k, v = (rng.standard_normal((3, 64)).astype(np.float32) for _ in range(2))
    kernels.kv_write(cache.pool, k, v, cache.slots(0, 10, 13), **cache.layout)
    element_bytes = 4 if dtype == "float32" else 2
    changed = np.count_nonzero((cache.pool != before).reshape(-1, element_bytes).any(axis=1))
    assert changed == 3 * 2 * 64


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_stores_round_to_nearest_even_and_keep_nan(kernels: Any, dtype: str) -> None:
    rng = np.random.default_rng(3)
    cache = make_cache(rng, [16], num_kv_heads=1, head_dim=64, dtype=dtype)
    values = (rng.integers(0, 2**32, 15 * 64, dtype=np.uint32) & 0x7FFFFFFF).view(np.float32)
    values = np.where(np.isfinite(values), values, 1.0).astype(np.float32)  # every magnitude, subnormals included
    ties = 1 + np.arange(64, dtype=np.float32) * 2.0**-11  # halfway between float16 neighbours, every other one
    x = np.concatenate([values * np.resize([1, -1], values.size), ties]).astype(np.float32).reshape(16, 64)
    x[0, 0] = np.nan
    kernels.kv_write(cache.pool, x, x, cache.slots(0, 0, 16), **cache.layout)
    expected = round_to(dtype, x)
    stored = as_floats(cache, cache.layer()[1][cache.tables[0, 0], 0, 0])
    assert np.isnan(stored[0, 0])
    assert np.array_equal(stored.ravel()[1:], expected.ravel()[1:])


def test_float16_saturates_and_counts(kernels: Any) -> None:
    cache = make_cache(np.random.default_rng(4), [16], num_kv_heads=1, head_dim=24, dtype="float16")
    k, v = np.zeros((1, 24), np.float32), np.zeros((1, 24), np.float32)
    k[0, [0, 20]] = 65504, 65505
    v[0, [1, 2, 23]] = np.inf, -1e30, -65504
    saturated = kernels.kv_write(cache.pool, k, v, cache.slots(0, 3, 4), **cache.layout)
    keys, values = cache.layer()
    block = cache.tables[0, 0]
    assert saturated == 3
    assert keys[block, 0, 0, [0, 20], 3].tolist() == [65504, 65504]
    assert values[block, 0, 0, 3, [1, 2, 23]].tolist() == [65504, -65504, -65504]


def test_bfloat16_does_not_saturate(kernels: Any) -> None:
    cache = make_cache(np.random.default_rng(5), [16], num_kv_heads=1, head_dim=16, dtype="bfloat16")
    x = np.full((1, 16), 3.4e38, np.float32)
    assert kernels.kv_write(cache.pool, x, x, cache.slots(0, 0, 1), **cache.layout) == 0


def make_integers(rng: np.random.Generator, count: int, head_dim: int) -> np.ndarray[Any, Any]:
    """Small whole numbers, whose sums are exact in any order."""
    return rng.integers(-100, 101, (count, 2 * head_dim)).astype(np.float32)


@pytest.mark.parametrize("head_dim", [16, 17, 22, 24, 64, 80, 256])
@pytest.mark.parametrize("block_size", [16, 64])
def test_int8_lands_where_the_layout_says(kernels: Any, head_dim: int, block_size: int) -> None:
    rng = np.random.default_rng(10)
    length = 70
    cache = make_cache(rng, [length], block_size=block_size, head_dim=head_dim, dtype="int8", layer_offset=192)
    k, v = (make_integers(rng, length, head_dim) for _ in range(2))
    kernels.kv_write(cache.pool, k, v, cache.slots(0, 0, length), **cache.layout)
    scales, *layers = cache.int8_layer()
    for position in range(length):
        block, offset = cache.tables[0, position // block_size], position % block_size
        for which, source in enumerate((k, v)):
            rotated = rotate(source[position].reshape(2, head_dim))
            scale = np.abs(rotated).max(axis=1).astype(np.float32) / np.float32(127)
            expected = np.rint(rotated.astype(np.float32) / scale[:, None])
            assert np.array_equal(scales[block, offset // 16, :, which, offset % 16], scale)
            assert np.array_equal(layers[which][block, offset // 16, :, offset % 16], expected)


def test_int8_writes_nothing_but_the_given_slots(kernels: Any) -> None:
    rng = np.random.default_rng(11)
    cache = make_cache(rng, [40], dtype="int8", layer_offset=64)
    x = 1 + make_integers(rng, 2, 32) ** 2
    kernels.kv_write(cache.pool, x, x, cache.slots(0, 11, 13), **cache.layout)
    untouched = make_cache(np.random.default_rng(11), [40], dtype="int8", layer_offset=64)
    kernels.kv_write(untouched.pool, x[:1], x[:1], cache.slots(0, 11, 12), **cache.layout)
    kernels.kv_write(untouched.pool, x[1:], x[1:], cache.slots(0, 12, 13), **cache.layout)
    assert np.array_equal(cache.pool, untouched.pool)
    touched = np.count_nonzero(cache.pool != 0xFF)
    assert 0.9 * 2 * 2 * 2 * 36 < touched <= 2 * 2 * 2 * 36  # a byte may come to be 0xFF


def test_int8_keeps_a_value_within_half_a_step_of_its_vector(kernels: Any) -> None:
    rng = np.random.default_rng(12)
    cache = make_cache(rng, [200], head_dim=64, dtype="int8")
    x = (rng.standard_normal((200, 128)) * 10.0 ** rng.integers(-20, 4, (200, 1))).astype(np.float32)
    kernels.kv_write(cache.pool, x, x, cache.slots(0, 0, 200), **cache.layout)
    rotated = rotate(x.reshape(200, 2, 64))
    step = np.abs(rotated).max(axis=2, keepdims=True) / 127
    for stored in cache.int8_contents(0, 200):
        assert (np.abs(rotate(stored) - rotated) <= 0.5001 * step).all()


def test_int8_spreads_an_outlier(kernels: Any) -> None:
    cache = make_cache(np.random.default_rng(13), [1], num_kv_heads=1, head_dim=64, dtype="int8")
    x = np.random.default_rng(14).standard_normal((1, 64)).astype(np.float32)
    x[0, 5] = 100
    kernels.kv_write(cache.pool, x, x, cache.slots(0, 0, 1), **cache.layout)
    error = np.abs(cache.int8_contents(0, 1)[0][0, 0] - x[0])
    assert error.max() < 0.1  # steps of 100 / 127 would be wrong by up to 0.4
    assert np.allclose(unrotate(rotate(x)), x)


def test_int8_saturates_and_counts(kernels: Any) -> None:
    cache = make_cache(np.random.default_rng(15), [16], num_kv_heads=1, head_dim=24, dtype="int8")
    k, v = np.zeros((1, 24), np.float32), np.zeros((1, 24), np.float32)
    k[0, [0, 20]] = 65504, 65505
    v[0, [1, 2, 23]] = np.inf, -1e30, -65504
    assert kernels.kv_write(cache.pool, k, v, cache.slots(0, 3, 4), **cache.layout) == 3
    scales, *_ = cache.int8_layer()
    assert np.isfinite(scales[cache.tables[0, 0], 0, 0, :, 3]).all()
    keys, _ = cache.int8_contents(0, 4)
    assert keys[3, 0, [0, 20]] == pytest.approx([65504, 65504], rel=0.01)


@pytest.mark.parametrize("value", [0.0, 1e-37, -1e-42])
def test_int8_vectors_of_almost_nothing_are_zeros(kernels: Any, value: float) -> None:
    cache = make_cache(np.random.default_rng(16), [16], num_kv_heads=1, dtype="int8")
    x = np.full((1, 32), value, np.float32)
    kernels.kv_write(cache.pool, x, x, cache.slots(0, 3, 4), **cache.layout)
    scales, *layers = cache.int8_layer()
    assert not scales[cache.tables[0, 0], 0, 0, :, 3].any()
    assert not any(layer[cache.tables[0, 0], 0, 0, 3].any() for layer in layers)


def test_int8_with_a_nan_is_nan_for_that_vector_only(kernels: Any) -> None:
    cache = make_cache(np.random.default_rng(17), [16], dtype="int8")
    x = np.ones((2, 64), np.float32)
    k = x.copy()
    k[0, 7] = np.nan
    assert kernels.kv_write(cache.pool, k, x, cache.slots(0, 3, 5), **cache.layout) == 0
    keys, values = cache.int8_contents(0, 5)
    assert np.isnan(keys[3, 0]).all()
    assert np.isfinite(keys[3, 1]).all()
    assert np.isfinite(keys[4]).all()
    assert np.isfinite(values[3:]).all()


def test_rows_may_be_a_view_of_a_wider_array(kernels: Any) -> None:
    rng = np.random.default_rng(6)
    cache, same = (make_cache(np.random.default_rng(7), [20]) for _ in range(2))
    qkv = rng.standard_normal((20, 3 * 64)).astype(np.float32)
    kernels.kv_write(cache.pool, qkv[:, 64:128], qkv[:, 128:], cache.slots(0, 0, 20), **cache.layout)
    k, v = qkv[:, 64:128].copy(), qkv[:, 128:].copy()
    kernels.kv_write(same.pool, k, v, same.slots(0, 0, 20), **same.layout)
    assert np.array_equal(cache.pool, same.pool)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 17, 22, 64, 80])
def test_a_layer_takes_the_bytes_that_its_spec_says(kernels: Any, dtype: CacheDtype, head_dim: int) -> None:
    spec = AttentionGroupSpec("full", 1, 2, head_dim, dtype, 32)
    cache = make_cache(np.random.default_rng(18), [32], head_dim=head_dim, dtype=dtype, block_size=32)
    cache.pool = np.zeros((1, 64), np.uint8)
    x = np.zeros((1, 2 * head_dim), np.float32)
    with pytest.raises(ValueError, match=f"a layer of {spec.layer_bytes} bytes"):
        kernels.kv_write(cache.pool, x, x, np.zeros(1, np.int64), **cache.layout)


@pytest.mark.parametrize("slot", [-1, 64, 2**40])
def test_a_slot_outside_the_pool_is_refused(kernels: Any, slot: int) -> None:
    cache = make_cache(np.random.default_rng(8), [32])
    x = np.zeros((1, 64), np.float32)
    with pytest.raises(ValueError, match=r"slots must be in \[0, 63\]"):
        kernels.kv_write(cache.pool, x, x, np.array([slot]), **cache.layout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 8}, "head_dim must be in"),
        ({"block_size": 24}, "multiple of 16"),
        ({"layer_offset": 32}, "does not fit a block"),
        ({"num_kv_heads": 4}, "does not fit a block"),
        ({"dtype": "int4"}, "dtype must be"),
        ({"head_dim": 16}, r"k must have shape \(1, 32\)"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_layout_that_does_not_fit_is_refused(kernels: Any, change: dict[str, Any], message: str) -> None:
    cache = make_cache(np.random.default_rng(9), [32])
    x = np.zeros((1, 64), np.float32)
    with pytest.raises(ValueError, match=message):
        kernels.kv_write(cache.pool, x, x, np.zeros(1, np.int64), **{**cache.layout, **change})
