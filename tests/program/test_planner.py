from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from octavo.program.planner import ALIGNMENT_BYTES, Interval, plan_arena, row_stride

intervals = st.builds(
    lambda num_bytes, first, length: Interval(num_bytes, first, first + length),
    st.integers(1, 5000),
    st.integers(0, 30),
    st.integers(0, 12),
)


@given(st.lists(intervals, max_size=40))
def test_buffers_in_use_at_the_same_stage_do_not_share_memory(buffers: list[Interval]) -> None:
    plan = plan_arena(buffers)
    placed = list(zip(buffers, plan.offsets, strict=True))
    for (a, a_offset), (b, b_offset) in itertools.combinations(placed, 2):
        if a.first <= b.last and b.first <= a.last:
            assert a_offset + a.num_bytes <= b_offset or b_offset + b.num_bytes <= a_offset


@given(st.lists(intervals, min_size=1, max_size=40))
def test_every_buffer_is_aligned_and_inside_the_arena(buffers: list[Interval]) -> None:
    plan = plan_arena(buffers)
    for buffer, offset in zip(buffers, plan.offsets, strict=True):
        assert offset % ALIGNMENT_BYTES == 0
        assert 0 <= offset <= plan.num_bytes - buffer.num_bytes


def test_memory_of_a_dead_buffer_is_used_again() -> None:
    layers = [Interval(4096, stage, stage + 1) for stage in range(100)]
    assert plan_arena(layers).num_bytes == 2 * 4096


def test_the_tightest_gap_is_taken() -> None:
    buffers = [Interval(1024, 0, 3), Interval(64, 1, 9), Interval(128, 2, 3), Interval(64, 3, 9), Interval(128, 4, 4)]
    plan = plan_arena(buffers)
    assert plan.offsets[4] == plan.offsets[2]


def test_rows_are_padded_to_whole_lines() -> None:
    assert row_stride(101, element_bytes=4, multiple=16) == 112


def test_rows_are_not_whole_pages_apart() -> None:
    assert row_stride(2048, element_bytes=4, multiple=16) == 2064
