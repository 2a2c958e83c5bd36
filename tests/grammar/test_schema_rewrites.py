from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from grammar_helpers import accepts, compile_grammar

from octavo import RequestError
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.schema_rewrites import rewrite_schema

ABSENT = {"properties": {"a": False}}


@pytest.mark.parametrize(
    ("schema", "same"),
    [
        ({"minItems": 2.0, "maximum": 2.0}, {"minItems": 2, "maximum": 2.0}),
        ({"then": {}, "else": {}, "minContains": 2, "uniqueItems": False}, {}),
        ({"if": {"type": "string"}}, {}),
        ({"uniqueItems": True, "maxItems": 1}, {"maxItems": 1}),
        ({"dependentRequired": {"a": ["b"]}}, {"allOf": [{"anyOf": [ABSENT, {"required": ["b"]}]}]}),
        (
            {"allOf": [{}], "dependentSchemas": {"a": {"minItems": 1.0}}},
            {"allOf": [{}, {"anyOf": [ABSENT, {"minItems": 1}]}]},
        ),
        ({"propertyNames": True}, {}),
        ({"propertyNames": False}, {"maxProperties": 0}),
        ({"propertyNames": {"pattern": "^x"}}, {"patternProperties": {"^x": True}, "additionalProperties": False}),
        (
            {"propertyNames": {"enum": ["a", "b"], "type": "string"}, "additionalProperties": {"type": "integer"}},
            {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": False},
        ),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "properties": {"c": True, "b": {"type": "null"}}},
            {"properties": {"b": {"type": "null"}, "a": True}, "additionalProperties": False},
        ),
        (
            {"unevaluatedProperties": False, "properties": {"a": True}},
            {"additionalProperties": False, "properties": {"a": True}},
        ),
        ({"unevaluatedProperties": False, "additionalProperties": True}, {"additionalProperties": True}),
        (
            {"unevaluatedItems": {"type": "null"}, "prefixItems": [True]},
            {"items": {"type": "null"}, "prefixItems": [True]},
        ),
        ({"unevaluatedItems": True, "$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}),
        ({"items": {"minItems": 1.0}, "$defs": {"a": {"then": True}}}, {"items": {"minItems": 1}, "$defs": {"a": {}}}),
        ({"enum": [{"minItems": 1.0}], "const": {"then": 1}}, {"enum": [{"minItems": 1.0}], "const": {"then": 1}}),
    ],
    ids=str,
)  # fmt: skip
def test_a_keyword_is_said_in_others(schema: Any, same: Any) -> None:
    assert rewrite_schema(schema) == same


@pytest.mark.parametrize(
    "schema",
    [
        {"if": {"type": "string"}, "then": {"minLength": 1}},
        {"uniqueItems": True},
        {"uniqueItems": True, "maxItems": 2},
        {"contains": {}, "minContains": 2},
        {"unevaluatedProperties": False, "$ref": "#/$defs/a"},
        {"unevaluatedItems": False, "contains": {}},
        {"unevaluatedItems": False, "items": [{}]},
        {"propertyNames": {"pattern": "^x"}, "properties": {"a": True}},
        {"propertyNames": {"pattern": "^x", "maxLength": 3}},
        {"propertyNames": {"format": "uuid"}},
        {"propertyNames": {"pattern": ["x"]}},
        {"propertyNames": {"enum": "x"}},
        {"dependentRequired": {"a": "b"}},
        {"not": {"type": "string"}},
    ],
    ids=str,
)
def test_what_cannot_be_said_otherwise_is_left_and_refused(compiler: GrammarCompiler, schema: Any) -> None:
    assert rewrite_schema(schema) == schema
    with pytest.raises(RequestError):
        compile_grammar(compiler, json=schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}},
        },
    ],
    ids=str,
)  # fmt: skip
def test_the_rewritten_schema_accepts_what_the_first_does(compiler: GrammarCompiler, schema: Any) -> None:
    grammar = compile_grammar(compiler, json=schema)
    instances: list[Any] = [
        {}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": None}, {"b": None},
        {"abc": 1}, {"é€": 1}, {"é": "x"}, {"𝄞𝄞": 3},
    ]  # fmt: skip
    validator = jsonschema.Draft202012Validator(schema)
    for instance in instances:
        assert accepts(grammar, json.dumps(instance, ensure_ascii=False)) == validator.is_valid(instance), instance
