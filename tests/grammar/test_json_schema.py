from __future__ import annotations

from typing import Any

import pytest

from octavo.grammar.json_schema import check_schema, without_additional_properties


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": {}}, "'not' at # cannot be enforced"),
        ({"properties": {"a": {"uniqueItems": True}}}, "'uniqueItems' at #/properties/a cannot"),
        ({"anyOf": [{}, {"minimun": 1}]}, "'minimun' at #/anyOf/1 cannot"),
        ({"$defs": {"a": {"if": True}}}, "'if' at #/\\$defs/a cannot"),
        ({"items": {"x-guidance": {"lenient": True}}}, "'x-guidance' at #/items cannot"),
        ({"prefixItems": [5]}, "#/prefixItems/0 must be a schema"),
        ({"properties": []}, "properties at # must be an object"),
        ({"required": [{}]}, "required at # must be a list of names"),
        ({"items": {"required": ["a", ["b"]]}}, "required at #/items must be a list of names"),
        ([], "# must be a schema"),
        ("text", "# must be a schema"),
        ({"minItems": 10**9}, "minItems at # is 1000000000; at most 100000"),
        ({"additionalProperties": {"minLength": 10**6}}, "minLength at #/additionalProperties"),
        ({"pattern": "(.{1,999}){999}"}, "a pattern at # cannot be used: .* written out"),
        ({"patternProperties": {"a**": True}}, "a pattern at # cannot be used: .* repeats a repetition"),
        (
            {
                "properties": {str(index): True for index in range(2001)},
                "required": [str(index) for index in range(2001)],
            },
            "names 2001 properties; at most 2000",
        ),
        ({"properties": {str(index): True for index in range(481)}}, "at # has 481 that are not required; at most 480"),
        (nested(66), "nested more than 64 levels"),
        ({"enum": [nested(65)]}, "nested more than 64 levels"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"title": "a", "description": "b", "$comment": "c", "default": {"not": 1}, "x-order": 5},
        {"properties": {"not": {"type": "string"}, "if": True}},
        {"enum": [{"not": 1}], "const": {"if": 2}},
        nested(60),
    ],
    ids=lambda value: str(value)[:40],
)
def test_annotations_names_and_values_are_no_keywords(schema: Any) -> None:
    check_schema(schema)


def test_objects_are_closed_where_the_schema_does_not_say_otherwise() -> None:
    schema = {
        "properties": {"a": {"properties": {"b": True}}, "c": {"additionalProperties": True, "properties": {}}},
        "$defs": {"properties": {"type": "object"}},
        "items": [{"patternProperties": {"^x": True}}],
        "enum": [{"properties": {}}],
    }
    assert without_additional_properties(schema) == {
        "properties": {
            "a": {"properties": {"b": True}, "additionalProperties": False},
            "c": {"additionalProperties": True, "properties": {}},
        },
        "$defs": {"properties": {"type": "object"}},
        "items": [{"patternProperties": {"^x": True}, "additionalProperties": False}],
        "enum": [{"properties": {}}],
        "additionalProperties": False,
    }
