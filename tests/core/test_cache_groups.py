from __future__ import annotations

import itertools

import pytest
from core_helpers import make_specs

from octavo.core.block_pool import Block
from octavo.core.cache_groups import FullGroup, SlidingGroup, make_groups
from octavo.core.prefix_index import PrefixNode


def make_nodes(present: str) -> list[PrefixNode]:
    """A path whose i-th node has a block where `present` has an x."""
    return [
        PrefixNode(i, (i, b"", None), None, [Block(0, i) if mark == "x" else None]) for i, mark in enumerate(present)
    ]


def test_specs_decide_the_kind_of_each_group() -> None:
    full, sliding = make_groups(make_specs((None, 5)))
    assert type(full) is FullGroup
    assert isinstance(sliding, SlidingGroup)
    assert (sliding.group, sliding.window) == (1, 5)


def test_a_full_group_hits_up_to_its_first_missing_block() -> None:
    assert FullGroup(0, 4).longest_hit(make_nodes("xx-x"), 4) == 2
    assert FullGroup(0, 4).longest_hit(make_nodes("xxxx"), 3) == 3


@pytest.mark.parametrize(
    ("present", "limit", "expected"),
    [("--xx", 4, 4), ("--xx", 3, 0), ("-xx-", 4, 3), ("x---", 4, 1), ("----", 4, 0), ("xx-x", 4, 2), ("-x-x", 4, 0)],
)
def test_a_window_group_needs_the_blocks_that_the_next_token_sees(present: str, limit: int, expected: int) -> None:
    assert SlidingGroup(0, 4, 6).longest_hit(make_nodes(present), limit) == expected


def test_the_longest_window_hit_equals_brute_force() -> None:
    for block_size, window in itertools.product((1, 2, 4), range(1, 10)):
        group = SlidingGroup(0, block_size, window)
        for marks in itertools.product("x-", repeat=5):
            fits = [
                length
                for length in range(6)
                if all(
                    marks[seen // block_size] == "x"
                    for seen in range(max(0, length * block_size - window + 1), length * block_size)
                )
            ]
            assert group.longest_hit(make_nodes("".join(marks)), 5) == max(fits)


def test_a_window_of_one_needs_no_block_of_the_past() -> None:
    assert SlidingGroup(0, 4, 1).longest_hit(make_nodes("----"), 4) == 4


def test_the_first_needed_block_is_that_of_the_oldest_visible_token() -> None:
    for block_size, window, computed in itertools.product((1, 3, 4), range(1, 9), range(20)):
        oldest = max(0, computed - window + 1)
        assert SlidingGroup(0, block_size, window).first_needed_block(computed) == oldest // block_size
    assert FullGroup(0, 4).first_needed_block(100) == 0


def test_most_blocks_is_enough_for_every_step_of_a_request() -> None:
    for block_size, window, chunk in itertools.product((1, 2, 4), (1, 2, 5, 8), (1, 3, 7)):
        group, num_tokens = SlidingGroup(0, block_size, window), 30
        most = group.most_blocks(num_tokens, chunk)
        for computed in range(num_tokens):
            end = min(computed + chunk, num_tokens)
            held = -(-end // block_size) - group.first_needed_block(computed)
            assert held <= most
    assert FullGroup(0, 4).most_blocks(9, 2) == 3
