"""The choice of experts: against a plain sort in float64, on every kind of routing, and with logits that are odd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float32]

WEIGHT_TOLERANCE = 5e-6
"""Of a weight: the exponential of -20 magnifies the rounding of its argument by 20."""
PLAIN: dict[str, Any] = {
    "scoring": "softmax", "renormalize": False, "scale": 1.0, "num_groups": 1, "top_groups": 1, "group_score": "top2"
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax renormalised": {"renormalize": True},
    "top-k, then softmax": {"scoring": "topk_softmax"},
    "sigmoid": {"scoring": "sigmoid"},
    "sigmoid renormalised and scaled": {"scoring": "sigmoid", "renormalize": True, "scale": 2.5},
    "groups by the best": {"num_groups": 4, "top_groups": 2, "group_score": "max"},
    "groups by the two best": {"scoring": "sigmoid", "num_groups": 4, "top_groups": 3, "renormalize": True},
}


def route(kernels: Any, logits: Floats, top_k: int, bias: Floats | None = None, **kind: Any) -> tuple[Any, Floats]:
    experts = np.full((len(logits), top_k), np.nan, np.float32)
    weights = np.full((len(logits), top_k), np.nan, np.float32)
    kernels.route(logits, bias, experts, weights, top_k, **{**PLAIN, **kind})
    return experts.astype(int).tolist(), weights


def route_plainly(logits: Floats, top_k: int, bias: Floats | None, **kind: Any) -> tuple[list[int], list[float]]:
    """One row, in float64, by sorting (key descending, id ascending)."""
    kind = {**PLAIN, **kind}
    x = logits.astype(np.float64)
    if kind["scoring"] == "softmax":
        scores = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    else:
        scores = 1 / (1 + np.exp(-x)) if kind["scoring"] == "sigmoid" else x
    keys = scores if bias is None else scores + bias
    size = len(x) // kind["num_groups"]
    taken = 1 if kind["group_score"] == "max" else 2
    groups = [sum(sorted(keys[g * size : (g + 1) * size], reverse=True)[:taken]) for g in range(kind["num_groups"])]
    best = sorted(range(len(groups)), key=lambda g: (-groups[g], g))[: kind["top_groups"]]
    candidates = [e for e in range(len(x)) if e // size in best]
    chosen = sorted(candidates, key=lambda e: (-keys[e], e))[:top_k]
    weights = scores[chosen]
    if kind["scoring"] == "topk_softmax":
        weights = np.exp(weights - weights.max()) / np.exp(weights - weights.max()).sum()
    if kind["renormalize"]:
        weights = weights / weights.sum()
    return chosen, (weights * kind["scale"]).tolist()


@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("num_experts", [8, 60, 128, 256])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_experts_and_weights_are_those_of_a_sort(
    kernels: Any, kind: dict[str, Any], num_experts: int, has_bias: bool
) -> None:
    rng = np.random.default_rng(num_experts)
    logits = rng.standard_normal((40, num_experts)).astype(np.float32) * 3
    bias = rng.standard_normal(num_experts).astype(np.float32) if has_bias else None
    for top_k in (1, 3, num_experts // 4):
        experts, weights = route(kernels, logits, top_k, bias, **kind)
        for row, ids, factors in zip(logits, experts, weights, strict=True):
            expected_ids, expected = route_plainly(row, top_k, bias, **kind)
            assert ids == expected_ids
            assert np.allclose(factors, expected, rtol=WEIGHT_TOLERANCE, atol=1e-12)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "topk_softmax"])
def test_equal_scores_go_to_the_lower_id(kernels: Any, scoring: str) -> None:
    logits = np.array([[1, 2, 2, 0, 2, 1]], np.float32)
    experts, weights = route(kernels, logits, 5, scoring=scoring)
    assert experts == [[1, 2, 4, 0, 5]]
    assert weights[0, 0] == weights[0, 1] == weights[0, 2]


def test_equal_groups_go_to_the_lower_id(kernels: Any) -> None:
    logits = np.array([[0, 1, 1, 0, 1, 0]], np.float32)
    experts, _ = route(kernels, logits, 2, num_groups=3, top_groups=1)
    assert experts == [[1, 0]]


def test_bias_chooses_and_does_not_weigh(kernels: Any) -> None:
    logits = np.array([[3, 2, 1, 0]], np.float32)
    experts, weights = route(kernels, logits, 2, np.array([0, 0, 0, 5], np.float32), scoring="sigmoid")
    assert experts == [[3, 0]]
    assert np.allclose(weights, [[0.5, 1 / (1 + np.exp(-3))]], rtol=WEIGHT_TOLERANCE)


@pytest.mark.parametrize("num_experts", [1, 2, 7, 17, 33])
def test_all_experts_in_any_number(kernels: Any, num_experts: int) -> None:
    logits = np.random.default_rng(0).standard_normal((3, num_experts)).astype(np.float32)
    experts, weights = route(kernels, logits, num_experts)
    assert experts == np.argsort(-logits, axis=1).tolist()
    assert np.allclose(weights.sum(axis=1), 1, rtol=1e-6)


def test_sigmoids_that_are_all_zero_give_weights_of_zero(kernels: Any) -> None:
    _, weights = route(kernels, np.full((1, 4), -200, np.float32), 2, scoring="sigmoid", renormalize=True)
    assert weights.tolist() == [[0, 0]]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "topk_softmax"])
@pytest.mark.parametrize("place", [0, 3, 19])
def test_logit_that_is_not_a_number_shows_in_all_weights(kernels: Any, scoring: str, place: int) -> None:
    logits = np.zeros((1, 20), np.float32)
    logits[0, place] = np.nan
    experts, weights = route(kernels, logits, 5, scoring=scoring)
    assert len(set(experts[0])) == 5
    assert all(0 <= expert < 20 for expert in experts[0])
    assert np.isnan(weights).all()


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        ("top_k", {"top_k": 9}),
        ("num_groups", {"num_groups": 3}),
        ("top_groups", {"num_groups": 2, "top_groups": 3}),
        ("top_k", {"num_groups": 4, "top_groups": 1, "top_k": 3}),
        ("scoring", {"scoring": "relu"}),
        ("group_score", {"group_score": "mean"}),
    ],
    ids=["too many experts", "unequal groups", "too many groups", "groups too small", "scoring", "group score"],
)
def test_impossible_routing_is_refused(kernels: Any, problem: str, change: dict[str, Any]) -> None:
    change = dict(change)
    top_k = change.pop("top_k", 2)
    with pytest.raises(ValueError, match=problem):
        route(kernels, np.zeros((1, 8), np.float32), top_k, **change)
