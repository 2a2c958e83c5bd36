"""The oracle's part for mixtures of experts: the choice, row by row, and the sum in the order of ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.program.moe_ops import Routing

Floats = npt.NDArray[np.float32]

SMALLEST_SUM = np.float32(1e-20)
"""Added to a sum of sigmoids before dividing by it: all of them may be zero."""


def route(logits: Floats, routing: Routing, choice_bias: Floats | None) -> tuple[Floats, Floats]:
    """Return the experts and their weights of each row of logits [T, experts]."""
    chosen = [_route_row(row, routing, choice_bias) for row in logits]
    return np.stack([experts for experts, _ in chosen]), np.stack([weights for _, weights in chosen])


def weighted_sum(x: Floats, experts: Floats, weights: Floats, run_expert: Callable[[Floats, int], Floats]) -> Floats:
    """Add up what the experts of each row make of it, the best first."""
    out = np.zeros_like(x)
    for row, ids, factors, total in zip(x, experts, weights, out, strict=True):
        for expert, factor in zip(ids, factors, strict=True):
            total += factor * run_expert(row, int(expert))
    return out


def _route_row(logits: Floats, routing: Routing, choice_bias: Floats | None) -> tuple[Floats, Floats]:
    scores: Floats = {"softmax": softmax, "sigmoid": sigmoid, "topk_softmax": _same}[routing.scoring](logits)
    keys = scores if choice_bias is None else scores + choice_bias
    if routing.num_groups > 1:
        keys = np.where(_is_in_best_groups(keys, routing), keys, np.float32(-np.inf))
    experts = best(keys, routing.top_k)
    weights: Floats = scores[experts]
    if routing.scoring == "topk_softmax":
        weights = softmax(weights)
    if routing.renormalize:
        smallest = SMALLEST_SUM if routing.scoring == "sigmoid" else np.float32(0)
        weights = weights / (weights.sum() + smallest)
    return experts.astype(np.float32), weights * np.float32(routing.scale)


def softmax(x: Floats) -> Floats:
    """Return e^x over its sum."""
    e: Floats = np.exp(x - x.max())
    y: Floats = e / e.sum()
    return y


def sigmoid(x: Floats) -> Floats:
    """Return 1 / (1 + e^-x)."""
    y: Floats = np.float32(1) / (1 + np.exp(-x))
    return y


def _same(x: Floats) -> Floats:
    return x


def best(values: Floats, count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the largest values, largest first, the lower index first among equals."""
    return np.argsort(-values, kind="stable")[:count]


def _is_in_best_groups(keys: Floats, routing: Routing) -> npt.NDArray[np.bool_]:
    """Return for each expert whether it is in one of the groups that can be chosen from."""
    groups = np.sort(keys.reshape(routing.num_groups, -1), axis=1)
    scores = groups[:, -1] if routing.group_score == "max" else groups[:, -2:].sum(axis=1)
    is_best = np.isin(np.arange(routing.num_groups), best(scores, routing.top_groups))
    return np.repeat(is_best, routing.num_experts // routing.num_groups)
