from __future__ import annotations

import pytest
from cache_integrity import check_manager
from core_helpers import FULL, EventLog, make_manager, make_request

from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Request
from octavo.core.step import Move
from octavo.observe.events import BlockAllocated, BlockCopied, BlockReleased, BlockShared, PrefixCacheHit


def start(manager: KVCacheManager, request: Request, num_tokens: int | None = None) -> list[list[int]]:
    """Admit a request and compute some tokens, or all it has; return its block ids."""
    manager.adopt(request, manager.find_cached_prefix(request))
    compute(manager, request, request.num_tokens - request.num_computed_tokens if num_tokens is None else num_tokens)
    return ids(request)


def compute(manager: KVCacheManager, request: Request, num_tokens: int) -> None:
    assert manager.num_tokens_that_fit(request, num_tokens) == num_tokens
    manager.allocate(request, num_tokens)
    request.num_computed_tokens += num_tokens
    manager.commit(request)


def generate(manager: KVCacheManager, request: Request, *token_ids: int) -> None:
    """Append tokens, and compute each."""
    for token_id in token_ids:
        request.token_ids.append(token_id)
        request.num_tokens += 1
        compute(manager, request, 1)


def ids(request: Request) -> list[list[int]]:
    assert request.blocks is not None
    return [[-1 if block is None else block.block_id for block in table] for table in request.blocks.tables]


def fork(manager: KVCacheManager, prompt_len: int) -> tuple[Request, Request]:
    """Return a parent and a child that share a whole prompt."""
    parent = make_request("p", range(prompt_len), n=2, temperature=1.0)
    start(manager, parent)
    child = parent.spawn()
    manager.fork(parent, child)
    child.num_computed_tokens = prompt_len
    manager.commit(child)
    return parent, child


def test_a_prefix_is_found_once_its_blocks_are_full() -> None:
    manager = make_manager()
    first = make_request("first", range(11))
    start(manager, first, 7)
    probe = make_request("probe", range(11))
    assert len(manager.find_cached_prefix(probe)) == 1
    compute(manager, first, 4)
    assert len(manager.find_cached_prefix(probe)) == 2


def test_at_least_one_token_is_left_to_compute() -> None:
    manager = make_manager()
    start(manager, make_request("first", range(8)))
    assert len(manager.find_cached_prefix(make_request("again", range(8)))) == 1
    assert len(manager.find_cached_prefix(make_request("longer", range(9)))) == 2


def test_a_hit_shares_blocks_and_says_so() -> None:
    log = EventLog()
    manager = make_manager(events=log)
    (first,) = start(manager, make_request("first", range(9)))
    (second,) = start(manager, make_request("second", range(10)))
    assert second[:2] == first[:2]
    assert second[2] != first[2]
    assert log.of(PrefixCacheHit) == [PrefixCacheHit("second", 0, 8, 10)]
    assert (manager.num_queried_tokens, manager.num_hit_tokens) == (19, 8)


@pytest.mark.parametrize("other", [{"cache_salt": "x"}, {"prompt_logprobs": 1}, {"skip_reading_prefix_cache": True}])
def test_requests_that_must_not_share_do_not_hit(other: dict) -> None:
    manager = make_manager()
    start(manager, make_request("first", range(9)))
    assert manager.find_cached_prefix(make_request("other", range(9), **other)) == []


def test_a_manager_without_prefix_caching_publishes_nothing() -> None:
    manager = make_manager(enable_prefix_caching=False)
    request = make_request("first", range(9))
    start(manager, request)
    manager.free(request)
    assert manager.find_cached_prefix(make_request("again", range(9))) == []
    assert manager.pool.held_bytes == 0


def test_freed_blocks_are_hit_again() -> None:
    manager = make_manager()
    first = make_request("first", range(9))
    (before,) = start(manager, first)
    manager.free(first)
    (after,) = start(manager, make_request("again", range(9)))
    assert after[:2] == before[:2]


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    manager = make_manager(num_blocks=4)
    first = make_request("first", range(16))
    start(manager, first)
    manager.free(first)
    start(manager, make_request("other", range(50, 58)))
    assert len(manager.find_cached_prefix(make_request("again", range(17)))) == 2


def test_a_block_computed_twice_is_swapped_for_the_published_one() -> None:
    manager = make_manager()
    one, two = make_request("one", range(6)), make_request("two", range(6))
    for request in (one, two):
        manager.adopt(request, [])
        manager.allocate(request, 6)
    for request in (one, two):
        request.num_computed_tokens = 6
        manager.commit(request)
    assert ids(one)[0][0] == ids(two)[0][0]
    assert two.blocks is not None
    assert two.blocks.replaced == [(0, 0)]
    check_manager(manager, [one, two])
    assert manager.pool.num_used == [3]


def test_a_window_leaves_blocks_behind_and_reports_each() -> None:
    manager = make_manager(windows=(FULL, 5))
    request = make_request("a", range(12))
    start(manager, request)
    assert ids(request)[1] == [-1, -1, 2], "12 - 5 + 1 = 8: blocks 0 and 1 are not seen any more"
    assert request.blocks is not None
    assert sorted(request.blocks.replaced) == [(1, 0), (1, 1)]
    assert ids(request)[0] == [0, 1, 2]
    check_manager(manager, [request])


def test_a_window_hit_needs_only_the_blocks_in_the_window() -> None:
    manager = make_manager(windows=(FULL, 5), num_blocks=(8, 4))
    first = make_request("first", range(13))
    start(manager, first)
    manager.free(first)
    second = make_request("second", range(13))
    start(manager, second)
    assert second.num_computed_tokens == 13
    assert ids(second)[1][:2] == [-1, -1]
    check_manager(manager, [second])


def test_a_hit_is_cut_to_what_every_group_has() -> None:
    manager = make_manager(windows=(FULL, 5), num_blocks=(16, 3))
    first = make_request("first", range(21))
    manager.adopt(first, [])
    for chunk in (8, 4, 4, 4, 1):
        compute(manager, first, chunk)
    manager.free(first)
    assert len(manager.find_cached_prefix(make_request("whole", range(21)))) == 5
    assert len(manager.find_cached_prefix(make_request("part", range(13)))) == 0, "its window has been evicted"
    start(manager, make_request("other", range(90, 102)))
    assert len(manager.find_cached_prefix(make_request("whole", range(21)))) == 0


@pytest.mark.parametrize("windows", [(FULL,), (FULL, 3)], ids=str)
def test_a_shared_tail_is_copied_by_all_but_its_last_user(windows: tuple) -> None:
    manager = make_manager(windows=windows)
    parent, child = fork(manager, 6)
    assert ids(parent) == ids(child)
    before = ids(child)
    generate(manager, parent, 9)
    assert parent.blocks is not None
    copies = [Move("copy_block", g, table[1], ids(parent)[g][1]) for g, table in enumerate(before)]
    assert parent.blocks.moves == copies
    assert {(g, 1) for g in range(len(windows))} <= set(parent.blocks.replaced)
    generate(manager, child, 8)
    assert child.blocks is not None
    assert child.blocks.moves == []
    assert [table[1] for table in ids(child)] == [table[1] for table in before]
    check_manager(manager, [parent, child])


def test_a_full_tail_is_not_copied() -> None:
    manager = make_manager()
    parent, child = fork(manager, 8)
    generate(manager, parent, 9)
    generate(manager, child, 9)
    assert parent.blocks is not None
    assert parent.blocks.moves == []
    assert ids(parent)[0][:2] == ids(child)[0][:2]
    check_manager(manager, [parent, child])


def test_a_copy_counts_as_a_block_until_the_other_user_is_gone() -> None:
    manager = make_manager(num_blocks=2)
    parent, child = fork(manager, 6)
    parent.token_ids.append(9)
    parent.num_tokens += 1
    assert manager.num_tokens_that_fit(parent, 1) == 0
    manager.free(child)
    assert manager.num_tokens_that_fit(parent, 1) == 1
    assert manager.num_tokens_that_fit(parent, 9) == 2, "to the end of its tail"


def test_blocks_to_admit_counts_hits_that_nobody_uses() -> None:
    manager = make_manager()
    first = make_request("first", range(9))
    start(manager, first)
    again = make_request("again", range(13))
    nodes = manager.find_cached_prefix(again)
    assert manager.blocks_to_admit(again, nodes, 16) == [2]
    manager.free(first)
    assert manager.blocks_to_admit(again, nodes, 16) == [4]


def test_a_prefix_in_use_cannot_be_reset() -> None:
    manager = make_manager()
    request = make_request("first", range(9))
    start(manager, request)
    assert not manager.reset_prefix_cache()
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.find_cached_prefix(make_request("again", range(9))) == []
    check_manager(manager, [])


def test_usage_is_the_share_of_bytes_in_use() -> None:
    manager = make_manager(num_blocks=4)
    assert manager.usage() == 0.0
    start(manager, make_request("first", range(5)))
    assert manager.usage() == 0.5


@pytest.mark.parametrize("damage", ["count", "leak", "two writers", "published tail"])
def test_integrity_notices(damage: str) -> None:
    manager = make_manager()
    one, two = make_request("one", range(6)), make_request("two", range(20, 26))
    start(manager, one)
    start(manager, two)
    check_manager(manager, [one, two])
    assert one.blocks is not None
    assert two.blocks is not None
    tail = one.blocks.tables[0][1]
    assert tail is not None
    running = [one, two]
    if damage == "count":
        tail.ref_cnt += 1
    elif damage == "leak":
        running = [one]
    elif damage == "two writers":
        manager.pool.release(two.blocks.tables[0][1])  # type: ignore[arg-type]
        two.blocks.tables[0][1] = tail
        manager.pool.touch(tail)
    else:
        manager.index.attach(manager.index.child(one.blocks.node, b"x", None), tail)
    with pytest.raises(AssertionError):
        check_manager(manager, running)


def test_blocks_tell_when_they_change_hands() -> None:
    log = EventLog()
    manager = make_manager(events=log)
    parent, child = fork(manager, 6)
    generate(manager, parent, 1)
    manager.free(child)
    moves = [
        event for event in log.events if isinstance(event, (BlockAllocated, BlockShared, BlockCopied, BlockReleased))
    ]
    assert moves == [
        BlockAllocated(0, 0),
        BlockAllocated(0, 1),
        BlockShared(0, 0, 2),
        BlockShared(0, 1, 2),
        BlockAllocated(0, 2),
        BlockCopied("p", 0, 0, source=1, target=2),
        BlockReleased(0, 1, 1, is_published=False),
        BlockReleased(0, 1, 0, is_published=False),
        BlockReleased(0, 0, 1, is_published=True),
    ]


def test_blocks_are_silent_where_nobody_wants_to_hear_of_them() -> None:
    log = EventLog()
    log.wants_blocks = False
    manager = make_manager(events=log)
    parent, child = fork(manager, 6)
    generate(manager, parent, 1)
    manager.free(child)
    assert log.events == []
