"""Row-wise ops: against float64, on ragged widths, in place and on views; and rows that do not know of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float32]
WIDTHS = [1, 7, 15, 16, 17, 63, 64, 65, 576, 1000]
NORM_TOLERANCE = 1e-6  # of a value; sums of at most a thousand squares
GATE_TOLERANCE = 2e-6  # of the largest value of a row


def make_rows(rows: int, columns: int, seed: int = 0, scale: float = 1.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal((rows, columns)) * scale).astype(np.float32)


def norm(x: NDArray[Any], w: Floats, eps: float) -> NDArray[np.float64]:
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * w


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def silu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("heads", [1, 3])
def test_rms_norm_equals_its_formula(kernels: Any, width: int, heads: int) -> None:
    x, w = make_rows(5, heads * width, scale=3), make_rows(1, width, 1)[0]
    y = np.full_like(x, np.nan)
    kernels.rms_norm(x, w, y, heads=heads, eps=1e-5)
    expected = norm(x.reshape(5, heads, width), w, 1e-5).reshape(5, -1)
    assert (np.abs(y - expected) <= NORM_TOLERANCE * np.abs(expected)).all()


def test_rms_norm_works_in_place_and_on_views(kernels: Any) -> None:
    wide, w = make_rows(4, 300), make_rows(1, 100, 1)[0]
    x = wide[:, 100:200]
    expected = np.empty((4, 100), np.float32)
    kernels.rms_norm(x.copy(), w, expected)
    before = wide.copy()
    kernels.rms_norm(x, w, x)
    assert np.array_equal(x, expected)
    assert np.array_equal(wide[:, :100], before[:, :100])
    assert np.array_equal(wide[:, 200:], before[:, 200:])


def test_rms_norm_of_zeros_is_zero(kernels: Any) -> None:
    y = np.ones((1, 20), np.float32)
    kernels.rms_norm(np.zeros((1, 20), np.float32), np.ones(20, np.float32), y, eps=1e-6)
    assert not y.any()


def rotate(x: Floats, angles: Floats, positions: NDArray[np.int32], heads: int, interleaved: bool) -> Floats:
    """The formula in float32, one rounding for each operation."""
    half = angles.shape[1] // 2
    y = x.reshape(len(x), heads, -1).copy()
    cos, sin = angles[positions, None, :half], angles[positions, None, half:]
    first = np.arange(half) * (2 if interleaved else 1)
    second = first + (1 if interleaved else half)
    a, b = y[:, :, first], y[:, :, second]
    y[:, :, first], y[:, :, second] = a * cos - b * sin, b * cos + a * sin
    return y.reshape(x.shape)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize(("head_dim", "half"), [(16, 8), (24, 12), (64, 32), (80, 40), (64, 8), (10, 3)])
def test_rope_equals_its_formula_bit_for_bit(kernels: Any, interleaved: bool, head_dim: int, half: int) -> None:
    table = make_rows(40, 2 * half, 2)
    positions = np.array([0, 39, 7, 7, 12], np.int32)
    x = make_rows(5, 3 * head_dim)
    expected = rotate(x, table, positions, 3, interleaved)
    kernels.rope(x, table, positions, heads=3, interleaved=interleaved)
    assert np.array_equal(x, expected)


def test_rope_of_a_view_leaves_its_surroundings(kernels: Any) -> None:
    qkv, table = make_rows(3, 4 * 16), make_rows(5, 16, 3)
    expected = qkv.copy()
    positions = np.array([4, 0, 1], np.int32)
    expected[:, 16:48] = rotate(np.ascontiguousarray(qkv[:, 16:48]), table, positions, 2, False)
    kernels.rope(qkv[:, 16:48], table, positions, heads=2)
    assert np.array_equal(qkv, expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("gate", "oracle"), [("silu", silu), ("gelu_tanh", gelu_tanh)], ids=["silu", "gelu_tanh"])
def test_gated_mul_equals_its_formula(
    kernels: Any, width: int, gate: str, oracle: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> None:
    x = make_rows(4, 2 * width, scale=4)
    y = np.full((4, width), np.nan, np.float32)
    kernels.gated_mul(x, y, gate)
    expected = oracle(x[:, :width].astype(np.float64)) * x[:, width:]
    assert np.abs(y - expected).max() <= GATE_TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("gate", "oracle"), [("silu", silu), ("sigmoid", sigmoid)], ids=["silu", "sigmoid"])
@pytest.mark.parametrize("is_in_place", [False, True], ids=["apart", "in_place"])
def test_mul_by_gate_equals_its_formula(
    kernels: Any, width: int, gate: str, oracle: Callable[[NDArray[np.float64]], NDArray[np.float64]], is_in_place: bool
) -> None:
    x, both = make_rows(4, width), make_rows(4, 2 * width, 1, scale=4)
    g = both[:, width:]  # columns of a wider matrix, as a split product leaves them
    expected = x * oracle(g.astype(np.float64))
    y = x if is_in_place else np.full_like(x, np.nan)
    kernels.mul_by_gate(x, g, y, gate)
    assert np.abs(y - expected).max() <= GATE_TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("width", WIDTHS)
def test_one_gate_multiplies_the_whole_row(kernels: Any, width: int) -> None:
    x, g = make_rows(4, width), make_rows(4, 3, 1, scale=4)[:, 1:2]
    one, same = np.full_like(x, np.nan), np.full_like(x, np.nan)
    kernels.mul_by_gate(x, g, one, "sigmoid")
    kernels.mul_by_gate(x, np.repeat(g, width, axis=1), same, "sigmoid")
    assert np.array_equal(one, same)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gates_are_zero_far_below_and_the_identity_far_above(kernels: Any, gate: str) -> None:
    x = np.array([[-1e4, -3e38, 1e4, 1e19, np.nan] + [1] * 5], np.float32)
    y = np.empty((1, 5), np.float32)
    kernels.gated_mul(x, y, gate)
    assert y[0, :4].tolist() == [0.0, 0.0, 1e4, np.float32(1e19)]
    assert np.isnan(y[0, 4])


@pytest.mark.parametrize("width", WIDTHS)
def test_elementwise_ops_are_one_rounding(kernels: Any, width: int) -> None:
    a, b = make_rows(3, width), make_rows(3, width, 1)
    y = np.full_like(a, np.nan)
    kernels.add_rows(a, b, y)
    assert np.array_equal(y, a + b)
    kernels.mul_rows(a, b, y)
    assert np.array_equal(y, a * b)
    kernels.scale_rows(a, y, 0.3)
    assert np.array_equal(y, a * np.float32(0.3))
    kernels.add_rows(y, b, y)
    assert np.array_equal(y, a * np.float32(0.3) + b)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_softcap_equals_its_formula(kernels: Any, width: int, cap: float) -> None:
    x = make_rows(3, width, scale=20)
    y = np.full_like(x, np.nan)
    kernels.softcap_rows(x, y, cap)
    expected = cap * np.tanh(x.astype(np.float64) / cap)
    assert (np.abs(y - expected) <= 1e-6 * np.abs(expected)).all()


def test_gather_copies_rows_also_more_than_once(kernels: Any) -> None:
    x = make_rows(9, 33)
    rows = np.array([8, 0, 0, 3], np.int32)
    y = np.empty((4, 33), np.float32)
    kernels.gather_rows(x, rows, y)
    assert np.array_equal(y, x[rows])


@pytest.mark.parametrize("scale", [1.0, 16.97])
@pytest.mark.parametrize("format_number", [0, 1], ids=["F32", "F16"])
def test_embedding_looks_up_and_scales(kernels: Any, scale: float, format_number: int) -> None:
    table = make_rows(50, 48)
    stored = table if format_number == 0 else table.astype(np.float16)
    packed = kernels.PackedMatrix.pack(format_number, [stored.view(np.uint8)], 50, 48)
    ids = np.array([49, 0, 17, 17], np.int32)
    y = np.empty((4, 48), np.float32)
    kernels.embedding(packed, ids, y, scale=scale)
    assert np.array_equal(y, stored[ids].astype(np.float32) * np.float32(scale))


@pytest.mark.parametrize("op", ["rms_norm", "silu", "gelu_tanh", "softcap"])
def test_a_row_has_the_same_bits_in_any_company(kernels: Any, op: str) -> None:
    def run(x: Floats) -> Floats:
        y = np.empty((len(x), x.shape[1] // 2 if "lu" in op else x.shape[1]), np.float32)
        if op == "rms_norm":
            kernels.rms_norm(x, np.ones(x.shape[1], np.float32), y)
        elif op == "softcap":
            kernels.softcap_rows(x, y, 5.0)
        else:
            kernels.gated_mul(x, y, op)
        return y

    x = make_rows(67, 322, scale=5)
    together = run(x)
    for cut in ([67], [1, 66], [13, 54], [1] * 67):
        parts = np.split(x, np.cumsum(cut)[:-1])
        assert np.concatenate([run(part) for part in parts]).tobytes() == together.tobytes()


def call_rope(kernels: Any, position: int = 0, columns: int = 32, table: Floats | None = None) -> None:
    table = make_rows(4, 16) if table is None else table
    kernels.rope(make_rows(1, columns), table, np.array([position], np.int32), heads=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k: call_rope(k, position=4), r"positions must be in \[0, 3\], got 4"),
        (lambda k: call_rope(k, position=-1), r"positions must be in \[0, 3\], got -1"),
        (lambda k: call_rope(k, columns=33), "not a multiple of heads"),
        (lambda k: call_rope(k, table=make_rows(4, 18)), "even number of at most 16"),
        (lambda k: k.rms_norm(make_rows(1, 8), np.ones(3, np.float32), make_rows(1, 8)), "heads \\* len"),
        (lambda k: k.rms_norm(make_rows(1, 8), np.ones(8, np.float32), make_rows(2, 8)), r"y must have shape \(1, 8\)"),
        (lambda k: k.gated_mul(make_rows(1, 7), make_rows(1, 3), "silu"), "even number of columns"),
        (lambda k: k.gated_mul(make_rows(1, 8), make_rows(1, 4), "relu"), "gate must be"),
        (lambda k: k.mul_by_gate(make_rows(1, 8), make_rows(1, 4), make_rows(1, 8), "silu"), "g must have shape"),
        (lambda k: k.add_rows(make_rows(1, 8), make_rows(1, 9), make_rows(1, 8)), "b must have shape"),
        (lambda k: k.add_rows(make_rows(2, 8), make_rows(2, 8).T.copy().T, make_rows(2, 8)), "contiguous rows"),
        (lambda k: k.gather_rows(make_rows(2, 3), np.array([2], np.int32), make_rows(1, 3)), "rows must be in"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kernels: Any, call: Callable[[Any], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(kernels)


def test_other_dtypes_are_refused_not_converted(kernels: Any) -> None:
    x = make_rows(1, 8)
    with pytest.raises(TypeError):
        kernels.add_rows(x.astype(np.float64), x, x)
