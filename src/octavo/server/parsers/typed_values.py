"""Text that stands for a value of a JSON schema, to JSON: by the schema's types, never by running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

_PYTHON_WORDS = {"true": "true", "false": "false"}
_KINDS: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
}
_MAX_DEPTH = 8
"""Of alternatives within alternatives."""


def is_plain_text(schema: Any) -> bool:
    """Whether every value of a schema is text: what has no type is."""
    return _types(schema) in (set(), {"string"})


def value_text(text: str, schema: Any) -> str:
    """Return the JSON that a text stands for; it is a JSON string where it fits no other type of the schema."""
    types = _types(schema) - {"string"}
    word = text.strip()
    if "boolean" in types and word.lower() in _PYTHON_WORDS:
        return _PYTHON_WORDS[word.lower()]
    if "null" in types and word in ("null", "None"):
        return "null"
    try:
        value = json.loads(word, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if "integer" in types and isinstance(value, float) and value.is_integer():
        return str(int(value))
    if any(isinstance(value, _KINDS[name]) for name in types) and not (
        isinstance(value, bool) and "boolean" not in types
    ):
        return word
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any, depth: int = 0) -> set[str]:
    """Return the types that a schema allows; none, if it does not say."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    given = schema.get("type")
    found = {given} if isinstance(given, str) else set()
    if isinstance(given, list):
        found.update(name for name in given if isinstance(name, str))
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema[key] if isinstance(schema.get(key), list) else ():
            found |= _types(part, depth + 1)
    if not found and isinstance(schema.get("enum"), list):
        found.update(_type_of(value) for value in schema["enum"])
    return found & {*_KINDS, "string"}


def _type_of(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    return next((name for name, kinds in _KINDS.items() if isinstance(value, kinds)), "string")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
