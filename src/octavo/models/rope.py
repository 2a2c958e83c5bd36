"""Rotary embedding: how an architecture derives its angles, for every kind of scaling.

Kernels see only a table of cosines and sines (`program/rope_table.py`); everything that families do differently ends in
one vector of radians per position and one factor. Computed in double.

Source: Su et al. 2021, arXiv:2104.09864; yarn: Peng et al. 2023, arXiv:2309.00071; longrope: Ding et al. 2024,
arXiv:2402.13753.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.program.ops import RopeTable

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All angles divided by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """A larger base for lengths past the trained one. The length is `max_model_len`, so that an answer never depends on
    how long its request has become."""

    factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by a factor, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Slow dims interpolated, fast ones kept, cos and sin multiplied by `attention_factor`."""

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """One divisor per pair: the short ones up to the trained length, the long ones if `max_model_len` exceeds it."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    attention_factor: float


@dataclass(frozen=True, slots=True)
class DividedFrequencies:
    """One divisor per pair, as a GGUF's `rope_freqs.weight` gives them."""

    divisors: tuple[float, ...]


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling | DividedFrequencies


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The rotation of one kind of layer."""

    theta: float
    rotary_dim: int
    """Dims of a head that are rotated; the rest pass unchanged."""
    scaling: RopeScaling | None = None


def make_rope_table(name: str, spec: RopeSpec, max_model_len: int) -> RopeTable:
    """Return the table's description; `max_model_len` also chooses the factors where scaling depends on length."""
    inv_freq = _base_frequencies(spec.theta, spec.rotary_dim)
    scale = 1.0
    match spec.scaling:
        case None:
            pass
        case LinearScaling(factor):
            inv_freq = inv_freq / factor
        case DividedFrequencies(divisors):
            inv_freq = inv_freq / np.asarray(divisors)
        case DynamicScaling():
            inv_freq = _dynamic(spec, spec.scaling, max_model_len)
        case Llama3Scaling():
            inv_freq = _llama3(inv_freq, spec.scaling)
        case YarnScaling(attention_factor=scale):
            inv_freq = _yarn(inv_freq, spec, spec.scaling)
        case LongRopeScaling(attention_factor=scale):
            is_long = max_model_len > spec.scaling.original_max_positions
            inv_freq = inv_freq / np.asarray(spec.scaling.long_factors if is_long else spec.scaling.short_factors)
    return RopeTable(name, tuple(inv_freq.tolist()), scale, max_model_len)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """Return the factor on cos and sin that yarn uses if the config names none."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_attention_factor(factor: float, original_max_positions: int) -> float:
    """Return the factor on cos and sin that longrope uses if the config names none."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_max_positions))


def _base_frequencies(theta: float, rotary_dim: int) -> Doubles:
    pairs = np.arange(0, rotary_dim, 2, dtype=np.float64)
    result: Doubles = theta ** (-pairs / rotary_dim)
    return result


def _dynamic(spec: RopeSpec, scaling: DynamicScaling, max_model_len: int) -> Doubles:
    ratio = max(max_model_len, scaling.original_max_positions) / scaling.original_max_positions
    stretch = scaling.factor * ratio - (scaling.factor - 1)
    return _base_frequencies(spec.theta * stretch ** (spec.rotary_dim / (spec.rotary_dim - 2)), spec.rotary_dim)


def _llama3(inv_freq: Doubles, scaling: Llama3Scaling) -> Doubles:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_positions * inv_freq / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    result: Doubles = (1 - keep) * inv_freq / scaling.factor + keep * inv_freq
    return result


def _yarn(inv_freq: Doubles, spec: RopeSpec, scaling: YarnScaling) -> Doubles:
    def dim_of_turns(turns: float) -> float:
        """Return the (fractional) pair that makes so many turns over the trained length."""
        wavelength = scaling.original_max_positions / (turns * 2 * math.pi)
        return spec.rotary_dim * math.log(wavelength) / (2 * math.log(spec.theta))

    low, high = dim_of_turns(scaling.beta_fast), dim_of_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp, without dividing by zero
    ramp = np.clip((np.arange(spec.rotary_dim // 2) - low) / (high - low), 0.0, 1.0)
    result: Doubles = inv_freq / scaling.factor * ramp + inv_freq * (1 - ramp)
    return result
