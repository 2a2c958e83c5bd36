from __future__ import annotations

from core_helpers import make_config

from octavo.core.chunking import FixedChunkSizer, TargetItlChunkSizer, make_chunk_sizer


def test_a_fixed_limit_never_exceeds_the_budget() -> None:
    assert [FixedChunkSizer(8).limit(budget) for budget in (4, 16)] == [4, 8]


def test_zero_means_no_limit() -> None:
    assert FixedChunkSizer(0).limit(16) == 16


def steps(sizer: TargetItlChunkSizer, seconds_per_token: float, count: int = 40) -> list[int]:
    """Let it learn from steps that take time in proportion to their tokens."""
    limits = []
    for _ in range(count):
        limit = sizer.limit(512)
        sizer.observe(limit, limit * seconds_per_token, True)
        limits.append(limit)
    return limits


def test_a_target_time_is_reached_from_above_and_from_below() -> None:
    assert steps(TargetItlChunkSizer(100.0, 512), 0.01)[-1] == 16, "10 tokens fit; 16 is the least"
    assert 80 <= steps(TargetItlChunkSizer(100.0, 512), 0.001)[-1] <= 100
    assert steps(TargetItlChunkSizer(100.0, 512), 0.0001)[-1] == 512, "1,000 tokens fit; 512 is the most"


def test_steps_that_were_not_cut_at_the_limit_teach_nothing() -> None:
    sizer = TargetItlChunkSizer(100.0, 512)
    before = sizer.limit(512)
    sizer.observe(64, 10.0, False)
    assert sizer.limit(512) == before


def test_a_budget_below_the_least_chunk_is_the_limit() -> None:
    assert steps(TargetItlChunkSizer(1.0, 8), 1.0)[-1] == 8


def test_a_target_time_replaces_the_threshold() -> None:
    fixed = make_chunk_sizer(make_config(long_prefill_token_threshold=8))
    learning = make_chunk_sizer(
        make_config(long_prefill_token_threshold=8, target_itl_ms=100.0, max_num_batched_tokens=512)
    )
    for sizer in (fixed, learning):
        sizer.observe(128, 1.0, True)
    assert (fixed.limit(512), learning.limit(512)) == (8, 16)
