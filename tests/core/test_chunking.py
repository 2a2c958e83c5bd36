from __future__ import annotations

from typing import Any

import pytest
from core_helpers import Engine, make_config, make_endless

from octavo.core.chunking import ChunkSizer


def make_sizer(**config: Any) -> ChunkSizer:
    return ChunkSizer(make_config(**{"max_num_batched_tokens": 512, "long_prefill_token_threshold": 256, **config}))


def run_steps(
    sizer: ChunkSizer, num_decoding: int, count: int, *, fixed: float, per_row: float, per_token: float, pure: bool
) -> list[float]:
    """Take steps with as much of prompts as the limit allows, or, pure, without; return how slow each was for it."""
    ratios = []
    for _ in range(count):
        chunk = 0 if pure else min(sizer.most_beside_streams(num_decoding), sizer.most_of_one_prompt)
        alone = fixed + per_row * num_decoding
        sizer.times.observe(num_decoding, chunk, alone + per_token * chunk)
        ratios.append((alone + per_token * chunk) / alone)
    return ratios


def taught(sizer: ChunkSizer, per_token: float, per_row: float, num_decoding: int, count: int = 40) -> int:
    """Return the limit after steps whose time is proportional to their rows, with prompts in every second one."""
    costs = {"fixed": 0.0, "per_row": per_row, "per_token": per_token}
    sizer.times.observe(0, 128, 128 * per_token)
    for _ in range(count):
        run_steps(sizer, num_decoding, 1, **costs, pure=True)
        run_steps(sizer, num_decoding, 1, **costs, pure=False)
    assert sizer.times.num_steps % ChunkSizer.PROBE_INTERVAL
    return sizer.most_beside_streams(num_decoding)


def test_one_prompt_takes_at_most_the_threshold_and_zero_means_no_limit() -> None:
    assert make_sizer(long_prefill_token_threshold=8).most_of_one_prompt == 8
    assert make_sizer(long_prefill_token_threshold=0).most_of_one_prompt == 512


@pytest.mark.parametrize(
    ("per_token", "limit"), [(0.03, 2), (0.001, 80), (0.00001, 512)], ids=["long tokens", "what fits", "the budget"]
)
def test_a_target_time_leaves_prompts_what_decoding_does_not_take(per_token: float, limit: int) -> None:
    assert taught(make_sizer(target_itl_ms=100.0), per_token, 0.005, 4) == pytest.approx(limit, abs=1)


@pytest.mark.parametrize(("per_token", "limit"), [(0.001, 100), (0.5, 1)])
def test_prompts_go_on_where_decoding_alone_takes_longer_than_the_target(per_token: float, limit: int) -> None:
    assert taught(make_sizer(target_itl_ms=100.0), per_token, 0.005, 40) == pytest.approx(limit, abs=1)


def test_by_default_a_step_takes_a_fixed_multiple_of_its_time_without_prompts() -> None:
    assert taught(make_sizer(), 0.001, 0.005, 8) == pytest.approx((ChunkSizer.SLOWDOWN - 1) * 8 * 0.005 / 0.001, abs=1)


@pytest.mark.parametrize("pure", [True, False], ids=["steps without prompts", "none without"])
@pytest.mark.parametrize(("before", "after"), [(1, 64), (64, 1)])
@pytest.mark.parametrize(
    "costs",
    [
        {"fixed": 0.010, "per_row": 0.0003, "per_token": 0.0005},
        {"fixed": 0.030, "per_row": 0.0001, "per_token": 0.0003},
        {"fixed": 0.001, "per_row": 0.0050, "per_token": 0.0010},
    ],
    ids=["small model", "large model", "slow rows"],
)
def test_the_slowdown_is_right_soon_after_the_number_of_streams_changed(
    costs: dict[str, float], before: int, after: int, pure: bool
) -> None:
    sizer = make_sizer()
    sizer.times.observe(0, 256, costs["fixed"] + 256 * costs["per_token"])
    run_steps(sizer, before, 40, **costs, pure=pure)
    ratios = run_steps(sizer, after, 40, **costs, pure=False)[16:]
    wanted = min(ChunkSizer.SLOWDOWN, 1 + 256 * costs["per_token"] / (costs["fixed"] + costs["per_row"] * after))
    assert max(ratios) <= 2.5
    assert sorted(ratios)[len(ratios) // 2] >= 0.75 * wanted, "prompts do not crawl"


def test_prompts_in_every_step_are_limited_by_a_target_time_too() -> None:
    sizer = make_sizer(target_itl_ms=50.0)
    run_steps(sizer, 8, 40, fixed=0.01, per_row=0.0005, per_token=0.0005, pure=False)
    (ratio,) = run_steps(sizer, 8, 1, fixed=0.01, per_row=0.0005, per_token=0.0005, pure=False)
    assert ratio * 0.014 <= 0.055


def test_prompts_so_short_that_they_explain_all_time_do_not_slow_long_ones_down_for_ever() -> None:
    sizer = make_sizer()
    sizer.times.observe(0, 4, 0.012)
    ratios = run_steps(sizer, 1, 20, fixed=0.01, per_row=0.0, per_token=0.0005, pure=False)
    assert ratios[-1] == pytest.approx(ChunkSizer.SLOWDOWN, rel=0.15)


def test_no_threshold_and_no_target_is_no_limit() -> None:
    assert taught(make_sizer(long_prefill_token_threshold=0), 0.01, 0.001, 8) == 512


def test_nothing_is_limited_before_it_was_measured() -> None:
    assert make_sizer(target_itl_ms=1.0).most_beside_streams(4) == 512


def test_the_limit_follows_a_cost_that_grows() -> None:
    sizer = make_sizer(target_itl_ms=100.0)
    before = taught(sizer, 0.001, 0.005, 4)
    assert taught(sizer, 0.002, 0.005, 4) == pytest.approx(before / 2, abs=2)


def test_steps_that_nobody_asked_about_for_long_have_faded() -> None:
    sizer = make_sizer(target_itl_ms=100.0)
    taught(sizer, 0.001, 0.005, 4)
    for _ in range(1000):
        sizer.times.observe(4, 0, 0.02)
    assert sizer.times.fit()[0] == pytest.approx(0.001, rel=0.01), "no step has told otherwise"
    after = taught(sizer, 0.002, 0.005, 4)
    assert after == pytest.approx(taught(make_sizer(target_itl_ms=100.0), 0.002, 0.005, 4), abs=2)


@pytest.mark.parametrize(("num_tokens", "seconds"), [(1, 0.1), (0, 10.0), (80, 10.0)])
def test_one_step_that_was_held_up_changes_little(num_tokens: int, seconds: float) -> None:
    sizer = make_sizer(target_itl_ms=100.0)
    before = taught(sizer, 0.001, 0.005, 4)
    sizer.times.observe(4, num_tokens, seconds)
    assert sizer.most_beside_streams(4) == pytest.approx(before, rel=0.15)


def test_a_step_of_no_time_teaches_nothing() -> None:
    sizer = make_sizer(target_itl_ms=100.0)
    before = taught(sizer, 0.001, 0.005, 4)
    sizer.times.observe(4, 80, 0.0)
    assert sizer.most_beside_streams(4) == before


@pytest.mark.parametrize("is_streamed", [True, False])
def test_only_streamed_requests_are_spared_the_wait_for_long_prompts(is_streamed: bool) -> None:
    engine = Engine(num_blocks=128, max_num_batched_tokens=64, max_model_len=256, target_itl_ms=16.0)
    engine.add(make_endless("decodes", 0, prompt_len=20, max_tokens=40, is_streamed=is_streamed))
    engine.advance(3)
    engine.add(make_endless("long", 1, prompt_len=200, max_tokens=2))
    engine.advance()
    chunk = engine.executor.plans[-1].num_scheduled_tokens.tolist()[1]
    # All the fake's steps take 10 ms, of 20 tokens or of one row: 5 ms and 0.25 ms a token, as far as one can tell.
    assert chunk == (24 if is_streamed else 63)


def test_prompts_share_what_streamed_requests_leave_them() -> None:
    engine = Engine(num_blocks=128, max_num_batched_tokens=64, max_model_len=256, target_itl_ms=16.0)
    engine.add(make_endless("decodes", 0, prompt_len=20, max_tokens=40))
    engine.advance(3)
    engine.add(make_endless("short", 1, prompt_len=5, max_tokens=2), make_endless("long", 2, prompt_len=200))
    engine.advance()
    assert engine.executor.plans[-1].num_scheduled_tokens.tolist() == [1, 5, 19]
