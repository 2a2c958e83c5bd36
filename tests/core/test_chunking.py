from __future__ import annotations

from typing import Any

import pytest
from core_helpers import Engine, make_config, make_endless

from octavo.core.chunking import ChunkSizer


def make_sizer(**config: Any) -> ChunkSizer:
    return ChunkSizer(make_config(**{"max_num_batched_tokens": 512, "long_prefill_token_threshold": 256, **config}))


def taught(sizer: ChunkSizer, per_token: float, per_row: float, num_decoding: int, count: int = 40) -> int:
    """Return the limit after steps whose time is proportional to their rows, with prompts in every second one."""
    sizer.observe(0, 128, 128 * per_token)
    for _ in range(count):
        sizer.observe(num_decoding, 0, num_decoding * per_row)
        chunk = sizer.most_beside_streams(num_decoding)
        sizer.observe(num_decoding, chunk, num_decoding * per_row + chunk * per_token)
    return sizer.most_beside_streams(num_decoding)


def test_one_prompt_takes_at_most_the_threshold_and_zero_means_no_limit() -> None:
    assert make_sizer(long_prefill_token_threshold=8).most_of_one_prompt == 8
    assert make_sizer(long_prefill_token_threshold=0).most_of_one_prompt == 512


@pytest.mark.parametrize(
    ("per_token", "limit"), [(0.03, 4), (0.001, 80), (0.00001, 512)], ids=["the least", "what fits", "the budget"]
)
def test_a_target_time_leaves_prompts_what_decoding_does_not_take(per_token: float, limit: int) -> None:
    assert taught(make_sizer(target_itl_ms=100.0), per_token, 0.005, 4) == pytest.approx(limit, abs=1)


def test_by_default_a_step_takes_a_fixed_multiple_of_its_time_without_prompts() -> None:
    assert taught(make_sizer(), 0.001, 0.005, 8) == pytest.approx((ChunkSizer.SLOWDOWN - 1) * 8 * 0.005 / 0.001, abs=1)


def test_no_threshold_and_no_target_is_no_limit() -> None:
    assert taught(make_sizer(long_prefill_token_threshold=0), 0.01, 0.001, 8) == 512


def test_nothing_is_limited_before_it_was_measured() -> None:
    assert make_sizer(target_itl_ms=1.0).most_beside_streams(4) == 512


def test_the_limit_follows_a_cost_that_grows() -> None:
    sizer = make_sizer(target_itl_ms=100.0)
    before = taught(sizer, 0.001, 0.005, 4)
    assert taught(sizer, 0.002, 0.005, 4) == pytest.approx(before / 2, abs=2)


def test_a_few_tokens_tell_nothing_about_the_cost_of_many() -> None:
    sizer = make_sizer(target_itl_ms=100.0)
    before = taught(sizer, 0.001, 0.005, 4)
    sizer.observe(4, 1, 0.1)
    assert sizer.most_beside_streams(4) == before


@pytest.mark.parametrize("is_streamed", [True, False])
def test_only_streamed_requests_are_spared_the_wait_for_long_prompts(is_streamed: bool) -> None:
    engine = Engine(num_blocks=128, max_num_batched_tokens=64, max_model_len=256, target_itl_ms=12.0)
    engine.add(make_endless("decodes", 0, prompt_len=20, max_tokens=40, is_streamed=is_streamed))
    engine.advance(3)
    engine.add(make_endless("long", 1, prompt_len=200, max_tokens=2))
    engine.advance()
    chunk = engine.executor.plans[-1].num_scheduled_tokens.tolist()[1]
    # The fake's steps take 10 ms: 0.5 ms for each of the first prompt's tokens, 10 ms for a decoding row.
    assert chunk == (4 if is_streamed else 63)


def test_prompts_share_what_streamed_requests_leave_them() -> None:
    engine = Engine(num_blocks=128, max_num_batched_tokens=64, max_model_len=256, target_itl_ms=12.0)
    engine.add(make_endless("decodes", 0, prompt_len=20, max_tokens=40))
    engine.advance(3)
    engine.add(make_endless("short", 1, prompt_len=10, max_tokens=2), make_endless("long", 2, prompt_len=200))
    engine.advance()
    assert engine.executor.plans[-1].num_scheduled_tokens.tolist() == [1, 4]
