from __future__ import annotations

import itertools

import pytest
from core_helpers import FULL, STATE, make_specs

from octavo.core.block_pool import Block
from octavo.core.cache_groups import PagedGroup, StateGroup, make_paged_groups
from octavo.core.prefix_index import PrefixNode


def make_nodes(present: str) -> list[PrefixNode]:
    """A path whose i-th node has a block where `present` has an x."""
    return [
        PrefixNode(i, (i, b"", None), None, [Block(0, i) if mark == "x" else None]) for i, mark in enumerate(present)
    ]


def test_specs_decide_the_kind_of_each_group() -> None:
    full, sliding = make_paged_groups(make_specs((FULL, 5, STATE)))
    assert (full.group, full.has_window) == (0, False)
    assert (sliding.group, sliding.has_window, sliding.window) == (1, True, 5)


def test_a_full_group_hits_up_to_its_first_missing_block() -> None:
    assert PagedGroup(0, 4, FULL).longest_hit(make_nodes("xx-x"), 4) == 2
    assert PagedGroup(0, 4, FULL).longest_hit(make_nodes("xxxx"), 3) == 3


@pytest.mark.parametrize(
    ("present", "limit", "expected"),
    [("--xx", 4, 4), ("--xx", 3, 0), ("-xx-", 4, 3), ("x---", 4, 1), ("----", 4, 0), ("xx-x", 4, 2), ("-x-x", 4, 0)],
)
def test_a_window_group_needs_the_blocks_that_the_next_token_sees(present: str, limit: int, expected: int) -> None:
    assert PagedGroup(0, 4, 6).longest_hit(make_nodes(present), limit) == expected


def test_the_longest_window_hit_equals_brute_force() -> None:
    for block_size, window in itertools.product((1, 2, 4), range(1, 10)):
        group = PagedGroup(0, block_size, window)
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


@pytest.mark.parametrize("windows", [(STATE,), (STATE, FULL), (FULL, STATE, 5)], ids=str)
def test_attention_groups_are_needed_and_come_first(windows: tuple) -> None:
    with pytest.raises(ValueError, match="needs an attention group, before all groups of recurrent states"):
        make_paged_groups(make_specs(windows))


def test_groups_must_share_a_block_size() -> None:
    with pytest.raises(ValueError, match="one block size"):
        make_paged_groups([*make_specs((FULL,), 16), *make_specs((STATE,), 32)])


@pytest.mark.parametrize(
    ("present", "limit", "expected"), [("xx-x", 4, 4), ("xx-x", 3, 2), ("--x-", 4, 3), ("----", 4, 0), ("x", 0, 0)]
)
def test_a_state_group_hits_its_last_snapshot(present: str, limit: int, expected: int) -> None:
    assert StateGroup(0).longest_hit(make_nodes(present), limit) == expected


def test_a_request_needs_one_slot_whatever_its_length() -> None:
    assert StateGroup(0).most_blocks(1, 1) == StateGroup(0).most_blocks(10_000, 512) == 1


def test_a_window_of_one_needs_no_block_of_the_past() -> None:
    assert PagedGroup(0, 4, 1).longest_hit(make_nodes("----"), 4) == 4


def test_the_first_needed_block_is_that_of_the_oldest_visible_token() -> None:
    for block_size, window, computed in itertools.product((1, 3, 4), range(1, 9), range(20)):
        oldest = max(0, computed - window + 1)
        assert PagedGroup(0, block_size, window).first_needed_block(computed) == oldest // block_size
    assert PagedGroup(0, 4, FULL).first_needed_block(100) == 0


def test_most_blocks_is_enough_for_every_step_of_a_request() -> None:
    for block_size, window, chunk in itertools.product((1, 2, 4), (1, 2, 5, 8), (1, 3, 7)):
        group, num_tokens = PagedGroup(0, block_size, window), 30
        most = group.most_blocks(num_tokens, chunk)
        for computed in range(num_tokens):
            end = min(computed + chunk, num_tokens)
            held = -(-end // block_size) - group.first_needed_block(computed)
            assert held <= most
    assert PagedGroup(0, 4, FULL).most_blocks(9, 2) == 3
