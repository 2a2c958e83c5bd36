"""Floors and aims of kernels, as fractions of a limit."""

from __future__ import annotations

import pytest

from octavo.bench.targets import Target, target_of


@pytest.mark.parametrize(
    ("weight_format", "num_rows", "expected"),
    [
        ("Q4_1", 1, ("bandwidth", 0.80, 0.92)),
        ("Q4_K", 8, ("peak", 0.40, 0.48)),
        ("Q4_1", 64, ("peak", 0.50, 0.58)),
        ("Q8_0", 512, ("peak", 0.52, 0.62)),
        ("Q6_K", 64, ("peak", 0.43, 0.50)),
        ("BF16", 64, ("peak", 0.65, 0.80)),
    ],
)
def test_a_product_has_the_target_of_its_format_and_rows(
    weight_format: str, num_rows: int, expected: tuple[str, float, float]
) -> None:
    target = target_of("linear", weight_format, num_rows, is_prompt=False)
    assert target is not None
    assert (target.limit, target.floor, target.aim) == expected


def test_attention_is_bound_by_arithmetic_in_a_prompt_and_by_memory_after_it() -> None:
    prompt, decode = (target_of("paged_attention", "", 64, is_prompt=is_prompt) for is_prompt in (True, False))
    assert prompt is not None
    assert decode is not None
    assert (prompt.limit, decode.limit) == ("peak", "bandwidth")


@pytest.mark.parametrize(
    ("op", "weight_format", "num_rows"), [("rms_norm", "", 64), ("linear", "Q8_0", 8), ("embedding", "Q4_1", 1)]
)
def test_what_no_target_was_set_for_has_none(op: str, weight_format: str, num_rows: int) -> None:
    assert target_of(op, weight_format, num_rows, is_prompt=False) is None


def test_a_verdict_names_the_best_that_was_reached() -> None:
    target = Target("peak", 0.5, 0.6)
    assert [target.verdict(fraction) for fraction in (0.49, 0.5, 0.6)] == ["below", "floor", "aim"]
