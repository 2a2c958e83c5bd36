"""exp2, exp, tanh, sigmoid, softplus: error against float64 over their whole range, and what happens outside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


def apply(kernels: Any, name: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    y = np.empty_like(x)
    getattr(kernels, name)(x, y)
    return y


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def softplus(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.logaddexp(0, x)


@pytest.mark.parametrize(
    ("name", "oracle", "low", "high", "tolerance"),
    [
        ("exp2", np.exp2, -100, 126, 1.5e-7),
        ("exp", np.exp, -69, 87, 8e-6),  # x * log2(e) is rounded: half an ulp of 126
        ("exp", np.exp, -1, 1, 3e-7),
        ("tanh", np.tanh, -12, 12, 4e-7),
        ("tanh", np.tanh, -1e-3, 1e-3, 2e-7),
        ("sigmoid", sigmoid, -69, 100, 8e-6),
        ("sigmoid", sigmoid, -4, 4, 6e-7),
        ("softplus", softplus, -69, 1000, 8e-6),
        ("softplus", softplus, -4, 4, 6e-7),
    ],
)
def test_relative_error_is_within_the_bound(
    kernels: Any, name: str, oracle: Any, low: float, high: float, tolerance: float
) -> None:
    x = np.random.default_rng(1).uniform(low, high, 200_001).astype(np.float32)
    expected = oracle(x.astype(np.float64))
    assert (np.abs(apply(kernels, name, x) - expected) <= tolerance * np.abs(expected)).all()


def test_exp2_of_integers_is_exact(kernels: Any) -> None:
    x = np.arange(-100, 127, dtype=np.float32)
    assert np.array_equal(apply(kernels, "exp2", x), np.exp2(x.astype(np.float64)))


def test_exp2_below_minus_100_is_exactly_zero(kernels: Any) -> None:
    x = np.array([np.nextafter(np.float32(-100), np.float32(-200)), -126, -149, -150, -1e9, -3e38, -np.inf], np.float32)
    assert apply(kernels, "exp2", x).tolist() == [0.0] * len(x)


def test_every_lane_gives_what_it_gives_alone(kernels: Any) -> None:
    x = np.random.default_rng(2).uniform(-120, 100, 1000).astype(np.float32)
    for name in ("exp2", "exp", "tanh", "sigmoid", "softplus"):
        together = apply(kernels, name, np.minimum(x, 80))
        alone = [apply(kernels, name, np.minimum(x, 80)[i : i + 1])[0] for i in range(1000)]
        assert together.tobytes() == np.array(alone, np.float32).tobytes()


def test_tanh_is_odd_bounded_and_keeps_nan(kernels: Any) -> None:
    x = np.concatenate([np.logspace(-38, 38, 2000), [np.inf, 0.0]]).astype(np.float32)
    y = apply(kernels, "tanh", x)
    assert np.array_equal(apply(kernels, "tanh", -x), -y)
    assert y.max() == 1.0
    assert (y[x > 9.5] == 1.0).all()
    assert np.isnan(apply(kernels, "tanh", np.array([np.nan], np.float32)))[0]


def test_softplus_is_zero_far_below_the_identity_far_above_and_keeps_nan(kernels: Any) -> None:
    x = np.array([-3e38, -100, 30, 3e38, np.nan], np.float32)
    y = apply(kernels, "softplus", x)
    assert y[:4].tolist() == [0.0, 0.0, 30.0, x[3]]
    assert np.isnan(y[4])
