"""Rounds float weights to blocks of a GGUF file, in numpy: the oracle of the native quantiser, not the way it is done.

The same float32 operations in the same order, so the bits agree. What is done and why: csrc/cpu/quantize_weights.h.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.formats.gguf_quants import dequantize_bytes
from octavo.formats.gguf_types import GgufType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_GROUP = 32
_MOST_LEVEL = np.float32(15)
_STEPS = range(10, 18)
_FIRST_REFINED = 14
_REFINEMENTS = 2


def quantize_rows(rows: Floats, kind: GgufType) -> Bytes:
    """Return rows [N, K] as rows of blocks [N, bytes]. The last group of a row is filled up with its last value."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % _GROUP)), mode="edge")
    return _ENCODERS[kind](padded.reshape(-1, _GROUP)).reshape(len(rows), -1)


def rounded(values: Floats, kind: GgufType) -> Floats:
    """Return a matrix [N, K] with the values that its rounded form stands for."""
    decoded = dequantize_bytes(quantize_rows(values, kind).reshape(-1), kind)
    return np.ascontiguousarray(decoded.reshape(len(values), -1)[:, : values.shape[1]])


def _q8_0(w: Floats) -> Bytes:
    d = np.abs(w).max(axis=1) / np.float32(127)
    half = d.astype("<f2")
    t = w * np.where(half > 0, _inverse(d), np.float32(0))[:, None]
    even = np.rint(np.abs(t))
    away = np.where(np.abs(t) - even >= np.float32(0.5), even + 1, even)
    return np.concatenate([half[:, None].view(np.uint8), np.copysign(away, t).astype(np.int8).view(np.uint8)], axis=1)


def _q4_1(w: Floats) -> Bytes:
    d, m = _best_grid(w)
    q = _levels(w, d, m).astype(np.uint8)
    halves = np.stack([d, m], axis=1).astype("<f2").view(np.uint8)
    return np.concatenate([halves, q[:, :16] | q[:, 16:] << 4], axis=1)


def _best_grid(w: Floats) -> tuple[Floats, Floats]:
    """Return d and m of each group [G]."""
    low, span, total = w.min(axis=1), w.max(axis=1) - w.min(axis=1), _sum(w)
    best_d = best_m = np.zeros(len(w), np.float32)
    least = np.full(len(w), np.inf, np.float32)
    for steps in _STEPS:
        below = np.float32(max(0.0, 0.5 * (steps - 15)))
        step = span / np.float32(steps)
        d, m = _storable(step), _storable(low + below * step)
        for _ in range(1 + _REFINEMENTS if steps >= _FIRST_REFINED else 1):
            q = _levels(w, d, m)
            error = d[:, None] * q + m[:, None] - w
            squares = _sum(error * error)
            better = least > squares
            least = np.where(better, squares, least)
            best_d, best_m = np.where(better, d, best_d), np.where(better, m, best_m)
            d, m = _refined(d, m, total, _sum(q), _sum(q * q), _sum(q * w))
    return best_d, best_m


def _refined(d: Floats, m: Floats, w: Floats, q: Floats, qq: Floats, qw: Floats) -> tuple[Floats, Floats]:
    """Return the grid of least squares, given the sums of w, q, q * q and q * w."""
    count = np.float32(_GROUP)
    determinant = count * qq - q * q
    differ = determinant > 0
    safe = np.where(differ, determinant, np.float32(1))
    fitted_d, fitted_m = (count * qw - q * w) / safe, (qq * w - q * qw) / safe
    return _storable(np.maximum(np.where(differ, fitted_d, d), 0)), _storable(np.where(differ, fitted_m, m))


def _levels(w: Floats, d: Floats, m: Floats) -> Floats:
    levels: Floats = np.rint(np.clip((w - m[:, None]) * _inverse(d)[:, None], np.float32(0), _MOST_LEVEL))
    return levels


def _inverse(d: Floats) -> Floats:
    one = np.float32(1)
    inverse: Floats = np.where(d > 0, one / np.where(d > 0, d, one), np.float32(0))
    return inverse


def _storable(x: Floats) -> Floats:
    """Return the float16 numbers next to x."""
    return x.astype(np.float16).astype(np.float32)


def _sum(columns: Floats) -> Floats:
    """Return the sum over the last axis, in order."""
    total = np.zeros(len(columns), np.float32)
    for column in columns.T:
        total = total + column
    return total


_ENCODERS: dict[GgufType, Callable[[Floats], Bytes]] = {GgufType.Q8_0: _q8_0, GgufType.Q4_1: _q4_1}
