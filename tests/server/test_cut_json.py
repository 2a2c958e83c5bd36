from __future__ import annotations

import json
from typing import Any

import pytest
from jiter import from_json

from octavo.server.messages_api.cut_json import read_cut_object

DOCUMENTS: list[Any] = [
    {},
    {"a": "x", "b": [1, -2.5, 1e30, True, False, None, "é\n\"\\", []], "c": {"d": {"e": {}}, "f": "{[,:"}},
    {"": "", "a,b": [[["x"], {"y": [{}]}], 0]},
]  # fmt: skip


def expected(text: str) -> Any:
    """Anthropic's own client puts the input of a call together so."""
    try:
        return from_json(text.encode(), partial_mode=True)
    except ValueError:
        return {}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_a_cut_object_has_the_members_that_anthropics_client_makes_of_it(number: int, indent: int | None) -> None:
    text = json.dumps(DOCUMENTS[number], indent=indent)
    for end in range(len(text) + 1):
        assert read_cut_object(text[:end]) == expected(text[:end]), text[:end]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "x", "[1, 2", '"a', "12", "null", '{"a": "\\x"', '{"a": 1}}', '{"a" 1, "b": 2', "{{{}",
        '{"a": ' * 100_000,
    ],
    ids=[
        "nothing", "space", "no JSON", "list", "string", "number", "null", "bad escape", "too closed", "no colon",
        "no name", "deep",
    ],
)  # fmt: skip
def test_what_is_no_object_and_no_part_of_one_has_no_members(text: str) -> None:
    assert read_cut_object(text) == {}


@pytest.mark.parametrize("rest", ['"}', '", "b', '", "b": [1, 2'], ids=["whole", "cut name", "cut list"])
def test_half_a_character_becomes_a_replacement_character(rest: str) -> None:
    members = read_cut_object('{"\\ude00": {"c": ["\\ud83d\\ude00"]}, "a": "x\\ud83d' + rest)
    members.pop("b", None)
    assert members == {"\ufffd": {"c": ["\U0001f600"]}, "a": "x\ufffd"}
    assert json.dumps(members, ensure_ascii=False).encode()


def test_a_long_open_string_is_read_in_a_moment() -> None:
    text = '{"a": 1, "b": "' + "x\\n" * 500_000
    assert read_cut_object(text) == {"a": 1}
