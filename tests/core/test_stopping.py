from __future__ import annotations

from typing import Any

import pytest
from core_helpers import EOS, OTHER_EOS, make_request

from octavo.core.request import Request
from octavo.core.stopping import Stop, check_stop


class StopAt:
    """A stop string that one token completes."""

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id
        self.seen: list[int] = []

    def append(self, token_id: int) -> str | None:
        self.seen.append(token_id)
        return "END" if token_id == self.token_id else None


class EndAt:
    """A grammar that one token completes."""

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id
        self.seen: list[int] = []

    def append(self, token_id: int) -> bool:
        self.seen.append(token_id)
        return token_id == self.token_id


def give(request: Request, *token_ids: int) -> Stop | None:
    """Append tokens; return what the last one means."""
    stop = None
    for token_id in token_ids:
        request.token_ids.append(token_id)
        request.num_tokens += 1
        stop = check_stop(request)
    return stop


def name_case(value: object) -> str:
    """A name that is the same in every process: functions print their address."""
    return str({key: "..." if callable(v) else v for key, v in value.items()} if isinstance(value, dict) else value)


@pytest.mark.parametrize(
    ("params", "token_id", "expected"),
    [
        ({}, 3, None),
        ({}, EOS, ("stop", None)),
        ({"ignore_eos": True}, EOS, None),
        ({"stop_token_ids": [3]}, 3, ("stop", 3)),
        ({"stop_token_ids": [EOS]}, EOS, ("stop", None)),
        ({}, OTHER_EOS, ("stop", OTHER_EOS)),
        ({"ignore_eos": True}, OTHER_EOS, None),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, EOS, ("stop", EOS)),
        ({"make_stop_checker": lambda: StopAt(3)}, 3, ("stop", "END")),
        ({"make_stop_checker": lambda: StopAt(EOS)}, EOS, ("stop", None)),
        ({"make_constraint": lambda: EndAt(3)}, 3, ("stop", None)),
        ({"make_constraint": lambda: EndAt(4)}, 3, None),
        ({"make_constraint": lambda: EndAt(3), "make_stop_checker": lambda: StopAt(3)}, 3, ("stop", None)),
        ({"make_constraint": lambda: EndAt(EOS), "stop_token_ids": [3]}, 3, ("stop", 3)),
        ({"make_constraint": lambda: EndAt(EOS), "ignore_eos": True}, EOS, ("stop", None)),
        ({"make_constraint": lambda: EndAt(EOS), "min_tokens": 3}, EOS, ("stop", None)),
        ({"make_constraint": lambda: EndAt(3), "max_tokens": 1}, 3, ("stop", None)),
        ({"max_tokens": 1}, 3, ("length", None)),
        ({"max_tokens": 1}, EOS, ("stop", None)),
        ({"max_tokens": 1, "make_stop_checker": lambda: StopAt(3)}, 3, ("stop", "END")),
    ],
    ids=name_case,
)
def test_the_first_reason_in_order_counts(params: dict[str, Any], token_id: int, expected: Stop | None) -> None:
    assert give(make_request(**params), token_id) == expected


@pytest.mark.parametrize("params", [{}, {"stop_token_ids": [EOS], "ignore_eos": True}], ids=str)
def test_min_tokens_holds_back_eos_and_stop_tokens(params: dict[str, Any]) -> None:
    request = make_request(max_tokens=9, min_tokens=3, **params)
    assert give(request, EOS, EOS) is None
    assert give(request, EOS) is not None


def test_min_tokens_does_not_hold_back_the_length() -> None:
    assert give(make_request(max_tokens=3, min_tokens=3), 1, 1, 1) == ("length", None)


def test_the_stop_checker_sees_tokens_that_min_tokens_holds_back() -> None:
    request = make_request(max_tokens=9, min_tokens=3, make_stop_checker=lambda: StopAt(99))
    give(request, EOS, 1)
    assert isinstance(request.stop_checker, StopAt)
    assert request.stop_checker.seen == [EOS, 1]


def test_each_completion_follows_a_grammar_of_its_own() -> None:
    parent = make_request(make_constraint=lambda: EndAt(EOS), n=2, temperature=1.0)
    child = parent.spawn()
    give(parent, 3, 4)
    give(child, 5)
    assert isinstance(parent.constraint, EndAt)
    assert isinstance(child.constraint, EndAt)
    assert (parent.constraint.seen, child.constraint.seen) == ([3, 4], [5])
