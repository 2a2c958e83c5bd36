"""sample_row: what is kept, what is drawn how often, what is reported; against a full sort in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SIZES = [1, 15, 64, 65, 1000, 4097, 49_152]
LOGPROB_TOLERANCE = 2e-6  # relative to the largest logprob of a row: float32 results
WEIGHT_TOLERANCE = 1e-6  # of the sum of a row's float32 weights: a border this close may fall on either side

KNOWN_PHILOX = [  # philox4x32-10 of Random123's known answers
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def make_logits(rng: np.random.Generator, size: int, spread: float = 3.0, ties: bool = False) -> Floats:
    x = rng.standard_normal(size) * spread
    return (np.round(x * 2) / 2 if ties else x).astype(np.float32)


def sample(kernels: Any, logits: Floats, **params: Any) -> tuple[int, int, int, float]:
    return tuple(kernels.sample_row(logits.copy(), **params))


def sample_with_top(kernels: Any, logits: Floats, count: int, **params: Any) -> tuple[Any, NDArray[np.int32], Floats]:
    ids, values = np.full(count, -7, np.int32), np.full(count, np.nan, np.float32)
    result = sample(kernels, logits, num_logprobs=count, top_ids=ids, top_logprobs=values, **params)
    return result, ids, values


def in_order(logits: Floats) -> NDArray[np.int64]:
    """Token ids, logit descending, id ascending."""
    return np.lexsort((np.arange(logits.size), -logits.astype(np.float64)))


def log_softmax(logits: NDArray[Any], temperature: float = 1.0) -> NDArray[np.float64]:
    x = logits.astype(np.float64) / temperature
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def kept_tokens(
    logits: Floats, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.int64]:
    """Ids that may be drawn, best first."""
    order = in_order(logits)
    p = np.exp(log_softmax(logits, temperature))[order]
    order = order[p >= min_p * p[0]]
    if top_k:
        order = order[:top_k]
    p = p[: order.size]
    if top_p == 1:
        return order
    cumulative = np.cumsum(p)
    return order[: 1 + int(np.searchsorted(cumulative, np.float64(np.float32(top_p)) * cumulative[-1]))]


def drawn_set(kernels: Any, logits: Floats, **params: Any) -> set[int]:
    """What could be drawn: the finite entries of the processed logits."""
    row = logits.copy()
    kernels.sample_row(row, mode="processed_logits", num_logprobs=0, **params)
    return set(np.flatnonzero(np.isfinite(row)).tolist())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_PHILOX, ids=["zeros", "ones", "pi"])
def test_philox_gives_the_known_answers(kernels: Any, counter: list[int], key: list[int], expected: list[int]) -> None:
    words = np.array(counter, np.uint32)
    kernels.philox4x32(words, np.array(key, np.uint32))
    assert words.tolist() == expected


def test_a_uniform_depends_on_seed_position_and_draw(kernels: Any) -> None:
    seed, position, draw = 0x299F31D0A4093822, 0x85A308D3243F6A88 - 2**64, 0x13198A2E
    words = np.array([0x243F6A88, 0x85A308D3, draw, 0], np.uint32)
    kernels.philox4x32(words, np.array([0xA4093822, 0x299F31D0], np.uint32))
    assert kernels.philox_uniform(seed, position, draw) == int(words[0]) / 2**32
    near = {kernels.philox_uniform(s, p, d) for s in (1, 2) for p in (3, 4) for d in (0, 1)}
    assert len(near) == 8


@pytest.mark.parametrize("size", SIZES)
def test_greedy_takes_the_first_of_the_largest(kernels: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    for ties in (False, True):
        logits = make_logits(rng, size, ties=ties)
        assert sample(kernels, logits)[:2] == (int(np.argmax(logits)), 0)


@pytest.mark.parametrize("size", [1, 17, 64, 4096, 5000])
def test_greedy_finds_the_largest_at_every_edge(kernels: Any, size: int) -> None:
    for where in {0, size // 2, max(0, size - 2), size - 1, min(63, size - 1), min(4095, size - 1)}:
        logits = np.full(size, -1e30, np.float32)
        logits[where] = -1e29
        assert sample(kernels, logits)[0] == where


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_keeps_the_fewest_that_reach_it(
    kernels: Any, size: int, temperature: float, spread: float, top_p: float
) -> None:
    rng = np.random.default_rng(size)
    for ties in (False, True):
        logits = make_logits(rng, size, spread, ties)
        actual = drawn_set(kernels, logits, temperature=temperature, top_p=top_p)
        expected = kept_tokens(logits, temperature, top_p=top_p).tolist()
        order = in_order(logits).tolist()
        assert actual == set(order[: len(actual)])
        share = np.exp(log_softmax(logits, temperature))[order].cumsum()
        border = share[min(len(actual), len(expected)) - 1]
        assert len(actual) == len(expected) or abs(border - np.float32(top_p)) < WEIGHT_TOLERANCE


@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.parametrize("top_p", [1e-300, 1e-40])
def test_a_top_p_that_float32_cannot_hold_keeps_the_best_alone(kernels: Any, top_p: float, top_k: int) -> None:
    logits = make_logits(np.random.default_rng(0), 300)
    assert drawn_set(kernels, logits, temperature=1.0, top_k=top_k, top_p=top_p) == {int(np.argmax(logits))}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("top_k", [1, 2, 15, 64, 500, 2000, 100_000])
def test_top_k_keeps_exactly_the_first_k_in_order(kernels: Any, size: int, top_k: int) -> None:
    rng = np.random.default_rng(size)
    for ties in (False, True):
        logits = make_logits(rng, size, ties=ties)
        expected = set(in_order(logits)[:top_k].tolist())
        assert drawn_set(kernels, logits, temperature=1.0, top_k=top_k) == expected


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_min_p_keeps_what_is_probable_enough(kernels: Any, size: int, temperature: float) -> None:
    logits = make_logits(np.random.default_rng(size), size)
    for min_p in (0.01, 0.3, 1.0):
        expected = set(kept_tokens(logits, temperature, min_p=min_p).tolist())
        assert drawn_set(kernels, logits, temperature=temperature, min_p=min_p) == expected


def test_filters_apply_in_the_order_min_p_top_k_top_p(kernels: Any) -> None:
    logits = make_logits(np.random.default_rng(30), 3000, 2.0)
    for top_k, top_p, min_p in [(50, 0.7, 0.0), (0, 0.7, 0.1), (40, 0.9, 0.2), (2000, 0.5, 0.001), (3, 1.0, 0.5)]:
        expected = set(kept_tokens(logits, 0.8, top_k, top_p, min_p).tolist())
        assert drawn_set(kernels, logits, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p) == expected


def test_a_row_of_equal_logits_keeps_the_lowest_ids(kernels: Any) -> None:
    logits = np.zeros(5000, np.float32)
    assert drawn_set(kernels, logits, temperature=1.0, top_p=0.25) == set(range(1250))
    assert drawn_set(kernels, logits, temperature=1.0, top_k=70) == set(range(70))


DRAWS = 20_000
CHI_SQUARE_LIMIT = {7: 29.9, 5: 25.7, 4: 23.5, 3: 21.1}  # degrees of freedom: exceeded with probability 1e-4


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"top_k": 5},
        {"top_p": 0.95},
        {"min_p": 0.1},
        {"top_k": 6, "top_p": 0.9},
        {"temperature": 0.6},
    ],
    ids=str,
)
@pytest.mark.parametrize("padding", [0, 200], ids=["one chunk", "several chunks"])
def test_tokens_are_drawn_as_often_as_they_should(kernels: Any, params: dict[str, Any], padding: int) -> None:
    logits = np.full(8 + padding, -80, np.float32)
    ids = np.sort(np.random.default_rng(31).permutation(logits.size)[:8])
    logits[ids] = [0.0, 1.0, -1.0, 0.5, 1.5, -0.5, 0.7, -2.0]
    params = {"temperature": 1.0, **params}
    counts = np.zeros(logits.size)
    for position in range(DRAWS):
        counts[kernels.sample_row(logits.copy(), seed=99, position=position, **params)[0]] += 1
    kept = [i for i in kept_tokens(logits, **params) if logits[i] > -80]
    p = np.exp(log_softmax(logits[kept], params["temperature"]))
    assert counts.sum() == counts[kept].sum()
    chi_square = (((counts[kept] - DRAWS * p) ** 2) / (DRAWS * p)).sum()
    assert chi_square < CHI_SQUARE_LIMIT[len(kept) - 1]


def test_a_draw_is_the_inverse_of_the_distribution_in_id_order(kernels: Any) -> None:
    logits = make_logits(np.random.default_rng(32), 10_000, 2.0)
    cumulative = np.exp(log_softmax(logits)).cumsum()
    for position in range(200):
        uniform = kernels.philox_uniform(5, position, 0)
        expected = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
        token = sample(kernels, logits, temperature=1.0, seed=5, position=position)[0]
        assert token == expected or abs(cumulative[min(token, expected)] - uniform) < WEIGHT_TOLERANCE


def test_tokens_without_probability_are_never_drawn(kernels: Any) -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[0, 999]] = -300, 5
    for position in range(500):
        assert sample(kernels, logits, temperature=1.0, position=position)[0] == 999


def test_no_logprob_is_above_that_of_certainty(kernels: Any) -> None:
    rng = np.random.default_rng(5)
    for temperature in rng.uniform(0.01, 2, 300).astype(np.float32).tolist():
        logits = np.full(100, -1e9, np.float32)
        logits[7] = 1000 * rng.standard_normal()
        params = {"mode": "processed_logprobs", "temperature": temperature, "num_logprobs": 0}
        assert sample(kernels, logits, **params)[::3] == (7, 0.0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7}, {"temperature": 1.3, "top_k": 40}], ids=str)
def test_scores_rank_and_top_tokens_are_those_of_a_full_sort(
    kernels: Any, size: int, mode: str, params: dict[str, Any]
) -> None:
    logits = make_logits(np.random.default_rng(size), size, ties=True)
    count = min(20, size)
    (token, status, rank, score), ids, scores = sample_with_top(kernels, logits, count, mode=mode, seed=3, **params)
    row = logits.astype(np.float64)
    if mode.startswith("processed"):
        if "top_k" in params:
            dropped = in_order(logits)[params["top_k"] :]
            row[dropped] = -np.inf
        row /= params.get("temperature", 1.0)
    order = in_order(row)
    if mode.endswith("logprobs"):
        row = log_softmax(row)
    assert status == 0
    assert ids.tolist() == order[:count].tolist()
    assert rank == 1 + np.count_nonzero(row > row[token])
    tolerance = LOGPROB_TOLERANCE * max(1.0, np.abs(row[np.isfinite(row)]).max())
    assert abs(score - row[token]) <= tolerance
    assert np.abs(scores - row[order[:count]]).max() <= tolerance


@pytest.mark.parametrize("size", [1, 3, 5, 7, 100, 4097, 12_289, 49_152])
def test_a_flat_row_has_the_logprob_of_its_size(kernels: Any, size: int) -> None:
    score = sample(kernels, np.full(size, 3.0, np.float32), mode="processed_logprobs", temperature=0.5, num_logprobs=0)[
        3
    ]
    assert score == pytest.approx(-np.log(size), rel=2.0**-23)


def test_the_whole_vocabulary_can_be_reported(kernels: Any) -> None:
    logits = make_logits(np.random.default_rng(33), 700)
    _, ids, values = sample_with_top(kernels, logits, 700)
    assert ids.tolist() == in_order(logits).tolist()
    assert np.abs(values - log_softmax(logits)[ids]).max() < 1e-5


def test_log_sum_exp_is_exact_where_all_weight_is_in_one_slice(kernels: Any) -> None:
    logits = np.full(20_000, -100, np.float32)
    logits[9000] = 10
    assert sample(kernels, logits, num_logprobs=0)[3] == 0.0


def test_a_forced_token_is_scored_on_the_raw_row(kernels: Any) -> None:
    logits = make_logits(np.random.default_rng(34), 5000)
    edits = {"edit_ids": np.array([17], np.int32), "edits": np.array([[-np.inf, 1, 0]], np.float32)}
    token, status, rank, score = sample(kernels, logits, forced_token=17, num_logprobs=0, temperature=0.5, **edits)
    assert (token, status, rank) == (17, 0, 1 + np.count_nonzero(logits > logits[17]))
    assert score == pytest.approx(log_softmax(logits)[17], rel=LOGPROB_TOLERANCE)


def test_edits_are_bias_then_repetition_then_penalty(kernels: Any) -> None:
    logits = np.array([1.0, -1.0, 2.0, 0.5], np.float32)
    ids = np.array([0, 1, 2, 0], np.int32)
    edits = np.array([[1, 4, 0.25], [0.5, 2, 0.5], [-np.inf, 1, 0], [0, 2, 0]], np.float32)
    row = logits.copy()
    kernels.sample_row(row, mode="processed_logits", num_logprobs=0, edit_ids=ids, edits=edits)
    assert row.tolist() == [0.125, -1.5, -np.inf, 0.5]


@pytest.mark.parametrize("size", [1, 31, 33, 500])
def test_only_allowed_tokens_can_be_drawn(kernels: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    logits = make_logits(rng, size)
    allowed = rng.random(size) < 0.3
    allowed[size // 2] = True
    padded = np.append(allowed, np.zeros(-size % 32, bool))
    words = np.packbits(padded, bitorder="little").view(np.uint32)
    masked = np.where(allowed, logits, -np.inf)
    assert sample(kernels, logits, allowed=words)[0] == int(np.argmax(masked))
    token = sample(kernels, logits, allowed=words, temperature=1.0, seed=4)[0]
    assert allowed[token]
    assert drawn_set(kernels, logits, allowed=words) == set(np.flatnonzero(allowed).tolist())


def test_raw_scores_are_those_before_edits_and_mask(kernels: Any) -> None:
    logits = make_logits(np.random.default_rng(35), 640)
    best = int(np.argmax(logits))
    only = np.zeros(20, np.uint32)
    only[3] = 1 << 5
    (token, _, rank, score), ids, _ = sample_with_top(kernels, logits, 1, allowed=only)
    assert token == 3 * 32 + 5
    assert ids.tolist() == [best]
    assert rank == 1 + np.count_nonzero(logits > logits[token])
    assert score == pytest.approx(log_softmax(logits)[token], rel=1e-5)


@pytest.mark.parametrize("size", [1, 64, 100, 5000])
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_a_non_finite_logit_is_found_wherever_it_is(kernels: Any, size: int, value: float) -> None:
    for where in {0, size // 2, size - 1}:
        logits = make_logits(np.random.default_rng(36), size)
        logits[where] = value
        for params in ({}, {"temperature": 1.0}, {"forced_token": 0}):
            assert sample(kernels, logits, **params)[:2] == (-1, 1)


def test_minus_infinity_is_a_logit_like_others(kernels: Any) -> None:
    logits = make_logits(np.random.default_rng(37), 100)
    logits[::2] = -np.inf
    assert sample(kernels, logits)[:2] == (int(np.argmax(logits)), 0)


def test_a_row_where_nothing_can_be_drawn_is_reported(kernels: Any) -> None:
    logits = np.zeros(100, np.float32)
    assert sample(kernels, np.full(100, -np.inf, np.float32))[1] == 1
    assert sample(kernels, logits, allowed=np.zeros(4, np.uint32))[1] == 2
    edits = {"edit_ids": np.array([5], np.int32), "edits": np.array([[3e38, 1e-30, 0]], np.float32)}
    assert sample(kernels, logits, **edits)[1] == 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.1}, "temperature must be finite"),
        ({"temperature": float("nan")}, "temperature must be finite"),
        ({"top_p": -0.5}, "top_p must be in"),
        ({"top_p": 1.5}, "top_p must be in"),
        ({"min_p": -0.5}, "min_p must be in"),
        ({"top_k": -1}, "top_k must be in"),
        ({"forced_token": 10}, r"forced_token must be in \[-1, 9\]"),
        ({"num_logprobs": 11}, "num_logprobs must be in"),
        ({"num_logprobs": 2}, "top_ids and top_logprobs must be given"),
        ({"mode": "best"}, "mode must be"),
        ({"allowed": np.zeros(2, np.uint32)}, "allowed must have 1 values"),
        ({"edit_ids": np.array([10], np.int32), "edits": np.ones((1, 3), np.float32)}, r"edit_ids must be in \[0, 9\]"),
        ({"edit_ids": np.array([1], np.int32), "edits": np.ones((2, 3), np.float32)}, "edits must have shape"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parameters_out_of_range_are_refused(kernels: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(kernels, np.zeros(10, np.float32), **params)
