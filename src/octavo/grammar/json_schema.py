"""Checks a JSON schema for what cannot be enforced, or would cost too much: all that llguidance does not refuse itself.

A keyword that is neither enforced nor known to say nothing about the instance is an error, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from octavo.grammar.regex_limits import MAX_WRITTEN_OUT, check_regex

MAX_NESTING = 64
MAX_PROPERTIES = 2_000
"""Named in all objects together; compiling takes time quadratic in an object's."""
MAX_OPTIONAL = 480
"""Properties of one object that may be left out: any of them may come next, and llguidance follows about 500 ways."""
MAX_LEAST_COUNT = 100_000
"""Of minItems, minLength, minProperties: more could not be generated."""

_ONE = ("additionalItems", "additionalProperties", "items")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_OTHERS = ("contains", "else", "if", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")
_NAMED = ("$defs", "definitions", "patternProperties", "properties")
_ENFORCED = frozenset(
    {
        *_ONE, *_MANY, *_NAMED,
        "$ref", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength",
        "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern",
        "required", "type",
    }
)  # fmt: skip
ANNOTATIONS = frozenset(
    {
        "$anchor", "$comment", "$dynamicAnchor", "$id", "$schema", "contentEncoding", "contentMediaType",
        "contentSchema", "default", "deprecated", "description", "discriminator", "example", "examples",
        "externalDocs", "id", "readOnly", "title", "writeOnly", "xml",
    }
)  # fmt: skip
_LEAST = ("minItems", "minLength", "minProperties")


def check_schema(schema: Any) -> None:
    """Raise ValueError, with the place of the fault, for a schema that cannot be served."""
    check_nesting(schema)
    num_properties = 0
    for place, part in _subschemas("#", schema):
        if not isinstance(part, (dict, bool)):
            raise ValueError(f"{place} must be a schema (an object, true or false), got {type(part).__name__}")
        if isinstance(part, dict):
            _check_keywords(place, part)
            num_properties += len(part.get("properties", ()))
    if num_properties > MAX_PROPERTIES:
        raise ValueError(f"the schema names {num_properties} properties; at most {MAX_PROPERTIES} can be served")


def check_nesting(schema: Any) -> None:
    """Raise ValueError for a schema that is nested too deeply for the others to look at."""
    if _nesting(schema) > MAX_NESTING:
        raise ValueError(f"the schema is nested more than {MAX_NESTING} levels deep")


def without_additional_properties(schema: Any) -> Any:
    """Return a copy in which objects have no properties but the named ones, where the schema does not say otherwise."""
    if not isinstance(schema, dict):
        return schema
    closed = map_subschemas(schema, without_additional_properties)
    if "properties" in closed or "patternProperties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def map_subschemas(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of a schema with each schema that it is made of changed, those of other keywords included."""
    copy = dict(schema)
    for key, value in schema.items():
        if key in _ONE + _MANY + _OTHERS:
            copy[key] = [change(part) for part in value] if isinstance(value, list) else change(value)
        elif key in (*_NAMED, "dependentSchemas") and isinstance(value, dict):
            copy[key] = {name: change(part) for name, part in value.items()}
    return copy


def _check_keywords(place: str, schema: dict[str, Any]) -> None:
    for key in schema:
        if key not in _ENFORCED and key not in ANNOTATIONS and (not key.startswith("x-") or key == "x-guidance"):
            raise ValueError(
                f"the keyword {key[:80]!r} at {place} cannot be enforced; leave it out, or write a grammar"
            )
    for key in _LEAST:
        least = schema.get(key, 0)
        if isinstance(least, (int, float)) and least > MAX_LEAST_COUNT:
            raise ValueError(f"{key} at {place} is {least}; at most {MAX_LEAST_COUNT} can be served")
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        if not isinstance(schema.get(key, {}), dict):
            raise ValueError(f"{key} at {place} must be an object")
    values = schema.get("enum", [])
    for value in [*(values if isinstance(values, list) else []), schema.get("const")]:
        if len(json.dumps(value)) > MAX_WRITTEN_OUT:
            raise ValueError(f"a value at {place} is longer than {MAX_WRITTEN_OUT} characters")
    required = schema.get("required", [])
    if isinstance(required, list) and not all(isinstance(name, str) for name in required):
        raise ValueError(f"required at {place} must be a list of names")
    optional = set(schema.get("properties", ())).difference(required if isinstance(required, list) else ())
    if len(optional) > MAX_OPTIONAL:
        raise ValueError(
            f"properties at {place} has {len(optional)} that are not required; at most {MAX_OPTIONAL} can be served"
        )
    for pattern in (schema.get("pattern"), *schema.get("patternProperties", ())):
        if isinstance(pattern, str):
            try:
                check_regex(pattern)
            except ValueError as error:
                raise ValueError(f"a pattern at {place} cannot be used: {error}") from None


def _subschemas(place: str, schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield a schema and all that it is made of, each with a JSON pointer to it."""
    yield place, schema
    if not isinstance(schema, dict):
        return
    for key in _ONE:
        if key in schema and not isinstance(schema[key], list):
            yield from _subschemas(f"{place}/{key}", schema[key])
    for key in _MANY:
        if isinstance(schema.get(key), list):
            for index, part in enumerate(schema[key]):
                yield from _subschemas(f"{place}/{key}/{index}", part)
    for key in _NAMED:
        if isinstance(schema.get(key), dict):
            for name, part in schema[key].items():
                yield from _subschemas(f"{place}/{key}/{name[:80]}", part)


def _nesting(value: Any) -> int:
    """Return how deep a value's lists and objects are nested, or a little more than the limit."""
    level, depth = [value], 0
    while depth <= MAX_NESTING:
        level = [
            part
            for entry in level
            if isinstance(entry, (dict, list))
            for part in (entry.values() if isinstance(entry, dict) else entry)
        ]
        if not level:
            return depth
        depth += 1
    return depth
