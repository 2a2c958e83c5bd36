"""Angles of each kind of scaling, against values worked out pair by pair. The tiny checkpoints test them end to end."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from octavo.models.rope import (
    DividedFrequencies,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    longrope_attention_factor,
    make_rope_table,
    yarn_attention_factor,
)
from octavo.program.ops import RopeTable
from octavo.program.rope_table import build_rope_table

DIM = 64
PLAIN = [10_000.0 ** (-2 * i / DIM) for i in range(DIM // 2)]


def make_table(scaling: RopeScaling | None, *, max_model_len: int = 128, rotary_dim: int = DIM) -> RopeTable:
    return make_rope_table("rope", RopeSpec(10_000.0, rotary_dim, scaling), max_model_len)


def test_plain_rope_is_a_geometric_series_of_angles() -> None:
    table = make_table(None)
    assert table.inv_freq == pytest.approx(PLAIN, rel=1e-14)
    assert (table.scale, table.num_positions, table.half) == (1.0, 128, 32)


def test_partial_rope_has_fewer_pairs_with_the_series_of_its_own_width() -> None:
    assert make_table(None, rotary_dim=16).inv_freq == pytest.approx([10_000.0 ** (-2 * i / 16) for i in range(8)])


def test_linear_scaling_divides_every_angle() -> None:
    assert make_table(LinearScaling(8.0)).inv_freq == pytest.approx([f / 8 for f in PLAIN])


def test_divisors_of_a_file_apply_pair_by_pair() -> None:
    divisors = tuple(1.0 + i for i in range(DIM // 2))
    assert make_table(DividedFrequencies(divisors)).inv_freq == pytest.approx(
        [f / (1 + i) for i, f in enumerate(PLAIN)]
    )


def test_llama3_keeps_short_wavelengths_and_divides_long_ones() -> None:
    scaled = make_table(Llama3Scaling(8.0, 1.0, 4.0, 8192)).inv_freq
    for plain, actual in zip(PLAIN, scaled, strict=True):
        turns = 8192 * plain / (2 * math.pi)
        if turns >= 4:
            assert actual == pytest.approx(plain)
        elif turns <= 1:
            assert actual == pytest.approx(plain / 8)
        else:
            assert plain / 8 < actual < plain


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_scales_both() -> None:
    table = make_table(YarnScaling(4.0, 2048, attention_factor=1.25))
    ratios = [plain / actual for plain, actual in zip(PLAIN, table.inv_freq, strict=True)]
    assert ratios[0] == pytest.approx(1.0)
    assert ratios[-1] == pytest.approx(4.0)
    assert all(a <= b + 1e-12 for a, b in pairwise(ratios))
    assert table.scale == 1.25


def test_dynamic_scaling_is_plain_up_to_the_trained_length() -> None:
    assert make_table(DynamicScaling(2.0, 128), max_model_len=128).inv_freq == pytest.approx(PLAIN)


def test_dynamic_scaling_grows_the_base_with_max_model_len() -> None:
    base = 10_000.0 * (2.0 * 256 / 128 - 1.0) ** (DIM / (DIM - 2))
    expected = [base ** (-2 * i / DIM) for i in range(DIM // 2)]
    assert make_table(DynamicScaling(2.0, 128), max_model_len=256).inv_freq == pytest.approx(expected)


@pytest.mark.parametrize(("max_model_len", "divisor"), [(128, 2.0), (129, 5.0)], ids=["short", "long"])
def test_longrope_chooses_its_factors_by_max_model_len(max_model_len: int, divisor: float) -> None:
    scaling = LongRopeScaling((2.0,) * 32, (5.0,) * 32, original_max_positions=128, attention_factor=1.1)
    table = make_table(scaling, max_model_len=max_model_len)
    assert table.inv_freq == pytest.approx([f / divisor for f in PLAIN])
    assert table.scale == 1.1


def test_attention_factors_without_scaling_are_one() -> None:
    assert yarn_attention_factor(1.0) == longrope_attention_factor(1.0, 4096) == 1.0
    assert yarn_attention_factor(4.0) == pytest.approx(0.1 * math.log(4.0) + 1.0)
    assert longrope_attention_factor(32.0, 4096) == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_table_holds_cosines_then_sines_rounded_once() -> None:
    values = build_rope_table(RopeTable("rope", (1.0, 0.25), scale=1.5, num_positions=4))
    expected = [[1.5 * f(p * w) for f in (math.cos, math.sin) for w in (1.0, 0.25)] for p in range(4)]
    assert values.dtype == np.float32
    assert values.tolist() == np.array(expected, dtype=np.float32).tolist()
