"""paged_attention: against softmax in float64, and the same bits however the work is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from paged_cache import DTYPES, PagedCache, fill_cache, make_cache

TOLERANCE = 1e-5  # of the largest output; float32 sums of a few hundred terms
INT8_TOLERANCE = 5e-4  # queries and weights are rounded to 16 bits
FAR_TOLERANCE = 1e-3  # the same where scores reach a thousand: one unit in the last place of a score is 1e-4

Floats = NDArray[np.float32]


def make_queries(rng: np.random.Generator, cache: PagedCache, num_heads: int, counts: list[int]) -> Floats:
    return rng.standard_normal((sum(counts), num_heads * cache.head_dim)).astype(np.float32)


def attend(
    kernels: Any, cache: PagedCache, q: Floats, counts: list[int], lengths: list[int], num_heads: int, **options: Any
) -> tuple[Floats, tuple[int, int]]:
    """Outputs, and how many units and folds the call was cut into."""
    out = np.full_like(q, np.nan)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    options = {"num_heads": num_heads, "scale": cache.head_dim**-0.5, **cache.layout, **options}
    plan = kernels.paged_attention(q, out, cache.pool, cache.tables, starts, np.array(lengths, np.int32), **options)
    return out, plan


def softmax_attention(
    cache: PagedCache,
    q: Floats,
    counts: list[int],
    lengths: list[int],
    num_heads: int,
    *,
    softcap: float = 0.0,
    window: int = 0,
    scale: float | None = None,
) -> NDArray[np.float64]:
    """The same in float64, one row and head after another."""
    D, group = cache.head_dim, num_heads // cache.num_kv_heads
    out = np.zeros(q.shape)
    row = 0
    for r, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        for position in range(length - count, length):
            first = max(0, position - window + 1) if window else 0
            for head in range(num_heads):
                columns = slice(head * D, (head + 1) * D)
                seen = (slice(first, position + 1), head // group)
                k, v = (x[r][seen].astype(np.float64) for x in (cache.keys, cache.values))
                scores = k @ q[row, columns].astype(np.float64) * (scale or D**-0.5)
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                weights = np.exp(scores - scores.max())
                out[row, columns] = weights @ v / weights.sum()
            row += 1
    return out


def tolerance_of(dtype: str) -> float:
    return INT8_TOLERANCE if dtype == "int8" else TOLERANCE


def assert_close(actual: Floats, expected: NDArray[np.float64], tolerance: float = TOLERANCE) -> None:
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 17, 22, 24, 32, 64, 80, 128, 256, 512])
def test_prefill_and_decode_equal_softmax(kernels: Any, dtype: str, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    lengths, counts = [1, 33, 79, 130], [1, 33, 7, 1]
    cache = make_cache(rng, lengths, head_dim=head_dim, dtype=dtype, layer_offset=128)
    fill_cache(kernels, rng, cache, lengths)
    q = make_queries(rng, cache, 6, counts)
    out, _ = attend(kernels, cache, q, counts, lengths, 6)
    assert_close(out, softmax_attention(cache, q, counts, lengths, 6), tolerance_of(dtype))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("group", [*range(1, 17), 40])
def test_any_group_size_equals_softmax(kernels: Any, dtype: str, group: int) -> None:
    rng = np.random.default_rng(group)
    lengths, counts = [90, 41], [70, 1]
    cache = make_cache(rng, lengths, head_dim=16, block_size=32, dtype=dtype)
    fill_cache(kernels, rng, cache, lengths)
    q = make_queries(rng, cache, 2 * group, counts)
    out, _ = attend(kernels, cache, q, counts, lengths, 2 * group)
    assert_close(out, softmax_attention(cache, q, counts, lengths, 2 * group), tolerance_of(dtype))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("window", [1, 7, 16, 64, 100, 600, 5000])
@pytest.mark.parametrize("length", [63, 64, 65, 700])
def test_a_window_hides_what_lies_before_it(kernels: Any, dtype: str, window: int, length: int) -> None:
    rng = np.random.default_rng(window + length)
    counts = [40]
    cache = make_cache(rng, [length], dtype=dtype)
    fill_cache(kernels, rng, cache, [length])
    hidden_blocks = max(0, length - counts[0] - window + 1) // cache.block_size
    cache.tables[0, :hidden_blocks] = -1  # left behind: freed, and never read
    q = make_queries(rng, cache, 4, counts)
    out, _ = attend(kernels, cache, q, counts, [length], 4, window=window)
    assert_close(out, softmax_attention(cache, q, counts, [length], 4, window=window), tolerance_of(dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0])
def test_softcap_and_scale_equal_softmax(kernels: Any, dtype: str, softcap: float) -> None:
    rng = np.random.default_rng(11)
    lengths, counts = [100], [60]
    cache = make_cache(rng, lengths, head_dim=64, dtype=dtype)
    fill_cache(kernels, rng, cache, lengths)
    q = 4 * make_queries(rng, cache, 4, counts)
    out, _ = attend(kernels, cache, q, counts, lengths, 4, softcap=softcap, scale=0.25)
    assert_close(out, softmax_attention(cache, q, counts, lengths, 4, softcap=softcap, scale=0.25), tolerance_of(dtype))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("length", [511, 512, 513, 1024, 1030, 1600])
def test_segments_are_folded_into_one_softmax(kernels: Any, dtype: str, length: int) -> None:
    rng = np.random.default_rng(length)
    counts = [9]
    cache = make_cache(rng, [length], head_dim=32, block_size=64, dtype=dtype)
    fill_cache(kernels, rng, cache, [length])
    q = 3 * make_queries(rng, cache, 4, counts)
    out, _ = attend(kernels, cache, q, counts, [length], 4)
    assert_close(out, softmax_attention(cache, q, counts, [length], 4), tolerance_of(dtype))


def test_scores_far_apart_underflow_to_exact_zero(kernels: Any) -> None:
    rng = np.random.default_rng(12)
    cache = make_cache(rng, [70], head_dim=32)
    fill_cache(kernels, rng, cache, [70])
    q = 500 * make_queries(rng, cache, 2, [70])
    out, _ = attend(kernels, cache, q, [70], [70], 2)
    assert_close(out, softmax_attention(cache, q, [70], [70], 2), FAR_TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [24, 64, 128])
@pytest.mark.parametrize("group", [1, 3, 7])
@pytest.mark.parametrize("window", [0, 50])
def test_a_decode_row_is_a_prefill_row(kernels: Any, dtype: str, head_dim: int, group: int, window: int) -> None:
    rng = np.random.default_rng(13)
    length, count, heads = 600, 150, 2 * group
    cache = make_cache(rng, [length], head_dim=head_dim, dtype=dtype)
    fill_cache(kernels, rng, cache, [length])
    q = make_queries(rng, cache, heads, [count])
    together, _ = attend(kernels, cache, q, [count], [length], heads, window=window)
    for row in range(count):
        alone, _ = attend(kernels, cache, q[row : row + 1], [1], [length - count + row + 1], heads, window=window)
        assert alone.tobytes() == together[row].tobytes(), row


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("chunks", [[67], [1, 66], [64, 3], [13, 20, 34], [1] * 67], ids=str)
def test_any_cut_of_the_rows_into_calls_gives_the_same_bits(kernels: Any, dtype: str, chunks: list[int]) -> None:
    rng = np.random.default_rng(14)
    base, heads = 470, 6
    cache = make_cache(rng, [base + 67], head_dim=64, dtype=dtype)
    fill_cache(kernels, rng, cache, [base + 67])
    q = make_queries(rng, cache, heads, [67])
    expected, _ = attend(kernels, cache, q, [67], [base + 67], heads)
    done, parts = 0, []
    for chunk in chunks:
        part, _ = attend(kernels, cache, q[done : done + chunk], [chunk], [base + done + chunk], heads)
        done += chunk
        parts.append(part)
    assert np.concatenate(parts).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_the_block_size_changes_no_bit(kernels: Any, dtype: str, block_size: int) -> None:
    results = []
    for size in (16, block_size):
        rng = np.random.default_rng(15)
        cache = make_cache(np.random.default_rng(size), [300], head_dim=64, dtype=dtype, block_size=size)
        fill_cache(kernels, rng, cache, [300])
        q = make_queries(rng, cache, 6, [77])
        results.append(attend(kernels, cache, q, [77], [300], 6, window=130)[0])
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("num_threads", [2, 3, 8])
@pytest.mark.parametrize("window", [0, 700])
def test_a_split_decode_gives_the_bits_of_one_thread(kernels: Any, dtype: str, num_threads: int, window: int) -> None:
    rng = np.random.default_rng(16)
    lengths, counts, heads = [2000, 30], [1, 5], 6
    cache = make_cache(rng, lengths, head_dim=64, dtype=dtype, block_size=32)
    fill_cache(kernels, rng, cache, lengths)
    q = make_queries(rng, cache, heads, counts)
    expected, (_, no_folds) = attend(kernels, cache, q, counts, lengths, heads, window=window)
    out, (units, folds) = attend(kernels, cache, q, counts, lengths, heads, window=window, num_threads=num_threads)
    assert (no_folds, folds) == (0, cache.num_kv_heads)
    assert units == cache.num_kv_heads * ((4 if window == 0 else 2) + 1)
    assert out.tobytes() == expected.tobytes()


def test_units_may_run_in_any_order(kernels: Any) -> None:
    rng = np.random.default_rng(17)
    lengths, counts, heads = [1500, 100, 640], [1, 100, 1], 4
    cache = make_cache(rng, lengths, head_dim=32)
    fill_cache(kernels, rng, cache, lengths)
    q = make_queries(rng, cache, heads, counts)
    expected, (units, _) = attend(kernels, cache, q, counts, lengths, heads, num_threads=4)
    for order in (np.arange(units)[::-1].copy(), rng.permutation(units)):
        out, _ = attend(kernels, cache, q, counts, lengths, heads, num_threads=4, unit_order=order)
        assert out.tobytes() == expected.tobytes()


def test_many_short_decodes_are_not_split(kernels: Any) -> None:
    rng = np.random.default_rng(18)
    lengths, counts = [600] * 12, [1] * 12
    cache = make_cache(rng, lengths, head_dim=16)
    fill_cache(kernels, rng, cache, lengths)
    q = make_queries(rng, cache, 2, counts)
    _, plan = attend(kernels, cache, q, counts, lengths, 2, num_threads=2)
    assert plan == (24, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stale", [np.nan, np.inf, -np.inf, 6e4], ids=str)
def test_what_a_row_does_not_see_cannot_reach_it(kernels: Any, dtype: str, stale: float) -> None:
    lengths, counts, heads = [75], [30], 4
    outs = []
    for hidden in (0.0, stale):
        rng = np.random.default_rng(19)
        cache = make_cache(rng, [96], dtype=dtype)
        cache.pool[:] = 0
        fill_cache(kernels, rng, cache, [96])
        tail = np.full((21, 64), hidden, np.float32)
        kernels.kv_write(cache.pool, tail, tail, cache.slots(0, 75, 96), **cache.layout)
        if np.isinf(hidden) and dtype == "float16":
            for part in cache.layer():  # a store would have saturated
                part[np.abs(part) == 65504] = hidden
        q = make_queries(rng, cache, heads, counts)
        outs.append(attend(kernels, cache, q, counts, lengths, heads, window=40)[0])
    assert np.isfinite(outs[0]).all()
    assert outs[0].tobytes() == outs[1].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("spoilt", ["keys", "values"])
def test_a_nan_that_a_row_sees_shows_in_its_output(kernels: Any, dtype: str, spoilt: str) -> None:
    rng = np.random.default_rng(20)
    cache = make_cache(rng, [40], dtype=dtype)
    fill_cache(kernels, rng, cache, [40])
    bad, good = np.full((1, 64), np.nan, np.float32), np.zeros((1, 64), np.float32)
    k, v = (bad, good) if spoilt == "keys" else (good, bad)
    kernels.kv_write(cache.pool, k, v, cache.slots(0, 17, 18), **cache.layout)
    q = make_queries(rng, cache, 2, [40])
    out, _ = attend(kernels, cache, q, [40], [40], 2)
    assert np.isfinite(out[:17]).all()
    assert np.isnan(out[17:]).all()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("window", [10, 100])
def test_a_nan_that_a_window_left_behind_shows_no_more(kernels: Any, dtype: str, window: int) -> None:
    rng = np.random.default_rng(24)
    cache = make_cache(rng, [200], dtype=dtype)
    fill_cache(kernels, rng, cache, [200])
    bad = np.full((1, 64), np.nan, np.float32)
    kernels.kv_write(cache.pool, bad, bad, cache.slots(0, 17, 18), **cache.layout)
    q = make_queries(rng, cache, 6, [200])
    out, _ = attend(kernels, cache, q, [200], [200], 6, window=window)
    spoilt = np.isnan(out).all(axis=1)
    assert np.array_equal(np.flatnonzero(spoilt), np.arange(17, 17 + window))
    assert np.isfinite(out[~spoilt]).all()


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e30, 1e-42], ids=str)
def test_an_int8_cache_takes_any_query(kernels: Any, value: float) -> None:
    rng = np.random.default_rng(25)
    cache = make_cache(rng, [40], dtype="int8")
    fill_cache(kernels, rng, cache, [40])
    q = make_queries(rng, cache, 2, [3])
    q[1] = value
    out, _ = attend(kernels, cache, q, [3], [40], 2)
    assert np.isfinite(out[[0, 2]]).all()
    if abs(value) < 1:  # all keys weigh the same
        assert_close(out[1], cache.values[0][:39].mean(axis=0).reshape(-1).astype(np.float64), INT8_TOLERANCE)
    else:
        assert np.isnan(out[1]).all() == (not np.isfinite(value))


def test_requests_without_rows_take_part_in_nothing(kernels: Any) -> None:
    rng = np.random.default_rng(21)
    lengths, counts = [20, 50, 0], [0, 3, 0]
    cache = make_cache(rng, lengths)
    fill_cache(kernels, rng, cache, lengths)
    q = make_queries(rng, cache, 2, counts)
    out, _ = attend(kernels, cache, q, counts, lengths, 2)
    assert_close(out, softmax_attention(cache, q, counts, lengths, 2))


@pytest.mark.parametrize("entry", [-1, 4, 2**31 - 1])
def test_a_block_outside_the_pool_is_refused(kernels: Any, entry: int) -> None:
    rng = np.random.default_rng(22)
    cache = make_cache(rng, [20])
    cache.tables[0, 1] = entry
    q = make_queries(rng, cache, 2, [1])
    with pytest.raises(ValueError, match=r"block_tables must be in \[0, 3\]"):
        attend(kernels, cache, q, [1], [20], 2)


@pytest.mark.parametrize(
    ("counts", "lengths", "options", "message"),
    [
        ([1], [33], {}, r"seq_lens must be in \[1, 32\]"),
        ([2], [1], {}, r"seq_lens must be in \[2, 32\]"),
        ([3], [20], {}, "query_start_loc must begin with 0 and end with"),
        ([2], [20], {"num_heads": 3}, "num_heads must be a multiple"),
        ([2], [20], {"window": -1}, "window must be in"),
        ([2], [20], {"softcap": -1.0}, "softcap must be at least 0"),
        ([2], [20], {"num_threads": 0}, "num_threads must be in"),
        ([2], [20], {"unit_order": np.array([0, 0])}, "unit_order holds 0 twice"),
        ([2], [20], {"unit_order": np.array([0, 5])}, "unit_order must be in"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    kernels: Any, counts: list[int], lengths: list[int], options: dict[str, Any], message: str
) -> None:
    rng = np.random.default_rng(23)
    cache = make_cache(rng, [20])
    options = {"num_heads": 2, **options}
    q = make_queries(rng, cache, options["num_heads"], [1 if counts == [1] else 2])
    with pytest.raises(ValueError, match=message):
        attend(kernels, cache, q, counts, lengths, **options)
