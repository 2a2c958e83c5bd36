from __future__ import annotations

from typing import Any

import pytest

from octavo import RequestError, SamplingParams, StructuredOutputsParams


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one of json, regex, choice, grammar, json_object: none is given"),
        ({"json_object": False}, "none is given"),
        ({"regex": "a", "json": {}}, "json, regex are given"),
        ({"json": "a", "json_object": True}, "json, json_object are given"),
        ({"json": 5}, "needs json to be a schema, .* got int"),
        ({"json": ""}, "empty json"),
        ({"regex": 5}, "needs regex to be text, got int"),
        ({"regex": ""}, "empty regex"),
        ({"regex": "a\0"}, "NUL character in regex"),
        ({"grammar": "  "}, "empty grammar"),
        ({"choice": []}, "at least one text"),
        ({"choice": "ab"}, "at least one text"),
        ({"choice": ["a", 1]}, "needs choice to be text"),
        ({"choice": ["\ud800"]}, "not valid Unicode"),
        ({"json_object": 1}, "true or false"),
        ({"structural_tag": "{}"}, "structural_tag here"),
        ({"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}, "leave one out"),
    ],
    ids=str,
)
def test_a_form_that_cannot_be_meant_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        StructuredOutputsParams(**values)
    assert raised.value.parameter == "structured_outputs"


def test_sampling_params_take_a_dict_too() -> None:
    params = SamplingParams(structured_outputs={"choice": ["a"], "json": None})
    assert params.structured_outputs == StructuredOutputsParams(choice=["a"])


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(RequestError, match=r"no field 'jsn'; it has choice, .* regex"):
        SamplingParams(structured_outputs={"jsn": {}})


def test_another_value_is_refused() -> None:
    with pytest.raises(RequestError, match="must be StructuredOutputsParams or a dict"):
        SamplingParams(structured_outputs="json")  # type: ignore[arg-type]


def test_what_is_assigned_later_is_checked_again() -> None:
    params = SamplingParams(structured_outputs={"regex": "a"})
    assert isinstance(params.structured_outputs, StructuredOutputsParams)
    params.structured_outputs.choice = ["b"]
    with pytest.raises(RequestError, match="regex, choice are given"):
        params.verify()
