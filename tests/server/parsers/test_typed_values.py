"""Values that a model writes as plain text, as its tool's schema types them."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.server.parsers.typed_values import is_plain_text, value_text

NULLABLE = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3", "3"),
        ({"type": "integer"}, " -12 ", "-12"),
        ({"type": "integer"}, "3.0", "3"),
        ({"type": "integer"}, "3.5", '"3.5"'),
        ({"type": "integer"}, "true", '"true"'),
        ({"type": "integer"}, "many", '"many"'),
        ({"type": "number"}, "1.50", "1.50"),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "number"}, "1" * 5000, f'"{"1" * 5000}"'),
        ({"type": "boolean"}, "true", "true"),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "1", '"1"'),
        ({"type": "null"}, "None", "null"),
        ({"type": "array"}, "[1, 2]", "[1, 2]"),
        ({"type": "array"}, "__import__('os').getcwd()", "\"__import__('os').getcwd()\""),
        ({"type": "object"}, '{"a": {"b": []}}', '{"a": {"b": []}}'),
        ({"type": "object"}, "{'a': 1}", "\"{'a': 1}\""),
        ({"type": "object"}, "[" * 100_000, '"' + "[" * 100_000 + '"'),
        (NULLABLE, "null", "null"),
        (NULLABLE, "5", "5"),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "5", '"5"'),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"enum": [1, 2]}, "2", "2"),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, "a b", '"a b"'),
    ],
)
def test_a_text_stands_for_a_value_of_its_schema(schema: Any, text: str, value: str) -> None:
    assert value_text(text, schema) == value


@pytest.mark.parametrize("schema", [{"type": "string"}, {"enum": ["a", "b"]}, {}, None, True, {"type": 5}])
def test_values_are_text_unless_a_schema_says_otherwise(schema: Any) -> None:
    assert is_plain_text(schema)


def test_alternatives_within_alternatives_end() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(50):
        schema = {"anyOf": [schema]}
    assert is_plain_text(schema)
