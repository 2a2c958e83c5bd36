from __future__ import annotations

import itertools

from core_helpers import make_request

from octavo.core.fault_search import FaultSearch
from octavo.core.request import Request, RequestStatus


def make_members(count: int) -> list[Request]:
    return [make_request(str(i), arrival=i) for i in range(count)]


def search(members: list[Request], guilty: set[int]) -> tuple[list[str], int]:
    """Run a search in which groups with a guilty one fail; return who was found, and the steps it took."""
    state, found, num_steps = FaultSearch(), [], 0
    group = members
    while True:
        num_steps += 1
        if any(request.arrival in guilty for request in group):
            culprit = state.accuse([(request, 5) for request in group])
            if culprit is not None:
                culprit.status = RequestStatus.FINISHED
                found.append(culprit.request_id)
        else:
            for request in group:
                request.num_computed_tokens = 5
        state.clear_passed()
        if not state.is_active:
            return found, num_steps
        group = [request for request in members if request in state._groups[-1]]


def test_every_set_of_guilty_requests_is_found_and_nobody_else() -> None:
    for size in range(1, 6):
        for guilty in itertools.chain.from_iterable(itertools.combinations(range(size), k) for k in range(1, size + 1)):
            found, _ = search(make_members(size), set(guilty))
            assert sorted(found) == [str(i) for i in guilty]


def test_halving_finds_one_of_64_in_few_steps() -> None:
    found, num_steps = search(make_members(64), {37})
    assert found == ["37"]
    assert num_steps <= 14


def test_a_suspect_that_did_not_get_past_its_target_stays_one() -> None:
    state, members = FaultSearch(), make_members(2)
    state.accuse([(request, 5) for request in members])
    members[0].num_computed_tokens = 4
    assert not state.clear_passed()
    assert state.next_waiting() is members[0]
    members[0].num_computed_tokens = 5
    assert state.clear_passed()
    assert state.next_waiting() is members[1]


def test_members_of_a_group_that_were_not_in_the_failed_step_are_tried_later() -> None:
    state, members = FaultSearch(), make_members(4)
    state.accuse([(request, 5) for request in members])
    assert state.accuse([(members[0], 5)]) is members[0]
    members[0].status = RequestStatus.FINISHED
    state.clear_passed()
    assert state.next_waiting() is members[1]


def test_the_end_of_the_search_is_not_a_turn_of_another_group() -> None:
    state, (one, two) = FaultSearch(), make_members(2)
    state.accuse([(one, 5), (two, 5)])
    one.num_computed_tokens = two.num_computed_tokens = 5
    assert not state.clear_passed()
    assert not state.is_active
