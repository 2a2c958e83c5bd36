"""Says in keywords that can be enforced what a JSON schema says in others: exactly the same, or it is left as it is."""

from __future__ import annotations

from typing import Any

from octavo.grammar.json_schema import ANNOTATIONS, map_subschemas

_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_IN_PLACE = frozenset(
    {
        "$dynamicRef", "$ref", "allOf", "anyOf", "contains", "dependentSchemas", "else", "if", "not", "oneOf", "then",
    }
)  # fmt: skip
"""Where one of these stands beside it, an `unevaluated…` keyword depends on more than its neighbours."""
_OF_NAMES = ANNOTATIONS | {"const", "enum", "maxLength", "minLength", "pattern", "type"}


def rewrite_schema(schema: Any) -> Any:
    """Return a schema that means the same; the caller has checked how deep it is nested."""
    if not isinstance(schema, dict):
        return schema
    schema = map_subschemas(schema, rewrite_schema)
    has_in_place = not _IN_PLACE.isdisjoint(schema)
    _drop_what_says_nothing(schema)
    for key in _COUNTS:
        if isinstance(schema.get(key), float) and schema[key].is_integer():
            schema[key] = int(schema[key])
    _rewrite_unevaluated(schema, has_in_place)
    _rewrite_property_names(schema)
    _rewrite_dependent(schema)
    return schema


def _drop_what_says_nothing(schema: dict[str, Any]) -> None:
    if "if" not in schema or ("then" not in schema and "else" not in schema):
        for key in ("if", "then", "else"):
            schema.pop(key, None)
    if "contains" not in schema:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)
    most = schema.get("maxItems")
    if schema.get("uniqueItems") is False or (schema.get("uniqueItems") is True and most in (0, 1)):
        del schema["uniqueItems"]


def _rewrite_dependent(schema: dict[str, Any]) -> None:
    """If a property is there, then others must be, or a schema holds: either it is not there, or they are."""
    consequences: list[tuple[str, Any]] = []
    for key in ("dependentRequired", "dependentSchemas"):
        entries = schema.get(key)
        is_of_names = key == "dependentRequired"
        if isinstance(entries, dict) and all(isinstance(entry, list) or not is_of_names for entry in entries.values()):
            consequences += [(name, {"required": entry} if is_of_names else entry) for name, entry in entries.items()]
            del schema[key]
    choices = [{"anyOf": [{"properties": {name: False}}, consequence]} for name, consequence in consequences]
    if choices and isinstance(schema.get("allOf", []), list):
        schema["allOf"] = [*schema.get("allOf", []), *choices]


def _rewrite_property_names(schema: dict[str, Any]) -> None:
    rule = schema.get("propertyNames")
    if rule is False:
        schema["maxProperties"] = 0
    if isinstance(rule, bool) or rule == {}:
        del schema["propertyNames"]
    if not isinstance(rule, dict) or not _OF_NAMES.issuperset(rule) or rule.get("type", "string") != "string":
        return
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    if "patternProperties" in schema or not isinstance(known, dict):
        return
    wanted = rule.keys() - ANNOTATIONS - {"type"}
    if wanted in ({"enum"}, {"const"}):
        names = rule["enum"] if wanted == {"enum"} else [rule["const"]]
        if not isinstance(names, list):
            return
        named = dict.fromkeys([*known, *(name for name in names if isinstance(name, str))])
        schema["properties"] = {name: known.get(name, rest) for name in named if name in names}
    elif wanted == {"pattern"} and isinstance(rule["pattern"], str) and not known:
        schema["patternProperties"] = {rule["pattern"]: rest}
    elif wanted and wanted <= {"minLength", "maxLength"} and not known:
        schema["patternProperties"] = {f"^(?s:.{{{rule.get('minLength', 0)},{rule.get('maxLength', '')}}})$": rest}
    else:
        return
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def _rewrite_unevaluated(schema: dict[str, Any], has_in_place: bool) -> None:
    for key, nearest in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if key not in schema:
            continue
        if schema[key] is True or (not has_in_place and nearest in schema and not isinstance(schema[nearest], list)):
            del schema[key]
        elif not has_in_place and nearest not in schema:
            schema[nearest] = schema.pop(key)
