from __future__ import annotations

import sys

import pytest
from core_helpers import EOS, OTHER_EOS, make_config, make_manager, make_request

from octavo.core.request import Request, RequestStatus
from octavo.core.request_queue import RequestQueue
from octavo.core.scheduler import Scheduler


class CountingChecker:
    num_made = 0

    def __init__(self) -> None:
        CountingChecker.num_made += 1

    def append(self, token_id: int) -> str | None:
        del token_id
        return None


def test_children_get_the_next_indices_and_seeds() -> None:
    parent = make_request(n=3, seed=10, temperature=1.0)
    children = [parent.spawn(), parent.spawn()]
    assert [child.index for child in children] == [1, 2]
    assert [child.seed for child in children] == [11, 12]
    assert parent.num_unborn == 0


def test_an_heir_goes_on_counting_where_its_parent_stopped() -> None:
    parent = make_request(n=5, seed=10, temperature=1.0)
    parent.spawn()
    heir = parent.spawn()
    heir.num_unborn, parent.num_unborn = parent.num_unborn, 0
    child = heir.spawn()
    assert (child.index, child.seed) == (3, 13)


def test_a_child_begins_with_the_prompt_and_waits_without_blocks() -> None:
    parent = make_request(prompt=[1, 2, 3], n=2, temperature=1.0)
    parent.token_ids.append(9)
    child = parent.spawn()
    assert child.token_ids.tolist() == [1, 2, 3]
    assert (child.status, child.blocks, child.num_unborn) == (RequestStatus.WAITING, None, 0)


def test_every_completion_has_its_own_stop_checker() -> None:
    CountingChecker.num_made = 0
    parent = make_request(n=3, temperature=1.0, make_stop_checker=CountingChecker)
    assert parent.spawn().stop_checker is not parent.stop_checker
    assert CountingChecker.num_made == 2


def test_ids_that_end_early_are_eos_and_stop_tokens() -> None:
    assert make_request(stop_token_ids=[3]).ends_early == {EOS, OTHER_EOS, 3}
    assert make_request(stop_token_ids=[3], ignore_eos=True).ends_early == {3}


def test_only_the_first_completion_scores_the_prompt() -> None:
    parent = make_request(n=2, temperature=1.0, prompt_logprobs=1)
    assert parent.num_scored_tokens == 1
    assert parent.spawn().num_scored_tokens == parent.prompt_len


def test_scoring_or_asking_not_to_skips_the_prefix_cache() -> None:
    assert make_request().reads_prefix_cache
    assert not make_request(prompt_logprobs=0).reads_prefix_cache
    assert not make_request(skip_reading_prefix_cache=True).reads_prefix_cache


def queue_of(policy: str, *requests: Request) -> RequestQueue:
    scheduler = Scheduler(make_config(policy=policy), make_manager())
    for request in requests:
        scheduler.add(request)
    return scheduler.roster.waiting


def drain(queue: RequestQueue) -> list[str]:
    ids = []
    while (request := queue.peek()) is not None:
        ids.append(request.request_id)
        queue.remove(request)
    return ids


def test_fcfs_goes_by_arrival_whatever_the_priority() -> None:
    urgent, early = make_request("urgent", arrival=2, priority=-5), make_request("early", arrival=1)
    assert drain(queue_of("fcfs", urgent, early)) == ["early", "urgent"]


def test_priority_goes_by_priority_then_arrival() -> None:
    requests = [make_request(f"{p}{a}", arrival=a, priority=p) for p, a in [(1, 0), (0, 2), (0, 1)]]
    assert drain(queue_of("priority", *requests)) == ["01", "02", "10"]


def test_a_request_that_comes_back_goes_before_those_that_came_later() -> None:
    first, second = make_request("first", arrival=1), make_request("second", arrival=2)
    queue = queue_of("fcfs", first, second)
    queue.remove(first)
    assert queue.peek() is second
    queue.push(first)
    assert drain(queue) == ["first", "second"]


def test_a_request_can_be_removed_from_the_middle_and_pushed_again() -> None:
    requests = [make_request(str(i), arrival=i) for i in range(4)]
    queue = queue_of("fcfs", *requests)
    queue.remove(requests[2])
    queue.remove(requests[1])
    queue.push(requests[2])
    assert len(queue) == 3
    assert [request.request_id for request in queue] == ["0", "2", "3"]
    assert drain(queue) == ["0", "2", "3"]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_queue_keeps_nothing_of_requests_that_left_it_from_behind(policy: str) -> None:
    first, gone = make_request("first", arrival=0, priority=-1), make_request("gone", arrival=1)
    queue = queue_of(policy, first)
    num_references = sys.getrefcount(gone)
    queue.push(gone)
    queue.remove(gone)
    assert sys.getrefcount(gone) == num_references
    assert drain(queue) == ["first"]


def test_requests_of_equal_rank_keep_their_order_and_leave_one_by_one() -> None:
    requests = [make_request(str(i)) for i in range(4)]
    queue = queue_of("priority", *requests)
    queue.remove(requests[2])
    assert drain(queue) == ["0", "1", "3"]
