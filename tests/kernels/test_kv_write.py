"""kv_write: where each value lands, rounding, saturation, what is left alone, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged_cache import DTYPES, PagedCache, fill_cache, make_cache, round_to


def as_floats(cache: PagedCache, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if cache.dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_but_the_given_slots_is_written(kernels: Any, dtype: str) -> None:
    rng = np.random.default_rng(2)
    cache = make_cache(rng, [40], dtype=dtype, layer_offset=64)
    before = cache.pool.copy()
    k, v = (rng.standard_normal((3, 64)).astype(np.float32) for _ in range(2))
    slots = cache.slots(0, 10, 13)
    slots[1] = -1
    kernels.kv_write(cache.pool, k, v, slots, **cache.layout)
    element_bytes = 4 if dtype == "float32" else 2
    changed = np.count_nonzero((cache.pool != before).reshape(-1, element_bytes).any(axis=1))
    assert changed == 2 * 2 * 64


@pytest.mark.parametrize("dtype", DTYPES)
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


def test_rows_may_be_a_view_of_a_wider_array(kernels: Any) -> None:
    rng = np.random.default_rng(6)
    cache, same = (make_cache(np.random.default_rng(7), [20]) for _ in range(2))
    qkv = rng.standard_normal((20, 3 * 64)).astype(np.float32)
    kernels.kv_write(cache.pool, qkv[:, 64:128], qkv[:, 128:], cache.slots(0, 0, 20), **cache.layout)
    k, v = qkv[:, 64:128].copy(), qkv[:, 128:].copy()
    kernels.kv_write(same.pool, k, v, same.slots(0, 0, 20), **same.layout)
    assert np.array_equal(cache.pool, same.pool)


@pytest.mark.parametrize("slot", [-2, 64, 2**40])
def test_a_slot_outside_the_pool_is_refused(kernels: Any, slot: int) -> None:
    cache = make_cache(np.random.default_rng(8), [32])
    x = np.zeros((1, 64), np.float32)
    with pytest.raises(ValueError, match=r"slots must be in \[-1, 63\]"):
        kernels.kv_write(cache.pool, x, x, np.array([slot]), **cache.layout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 8}, "head_dim must be in"),
        ({"block_size": 24}, "multiple of 16"),
        ({"layer_offset": 32}, "does not fit a block"),
        ({"num_kv_heads": 4}, "does not fit a block"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"head_dim": 16}, r"k must have shape \(1, 32\)"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_layout_that_does_not_fit_is_refused(kernels: Any, change: dict[str, Any], message: str) -> None:
    cache = make_cache(np.random.default_rng(9), [32])
    x = np.zeros((1, 64), np.float32)
    with pytest.raises(ValueError, match=message):
        kernels.kv_write(cache.pool, x, x, np.zeros(1, np.int64), **{**cache.layout, **change})
