"""Forms that are wrong or cost too much: rows H33 to H36 and T15 of the list of hostile inputs."""

from __future__ import annotations

from typing import Any


def _deep_object(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


_MUTUAL = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


def _object(num_properties: int, *, is_required: bool) -> dict[str, Any]:
    names = [str(index) for index in range(num_properties)]
    return {"type": "object", "properties": dict.fromkeys(names, True), "required": names if is_required else []}


def _chain(length: int) -> dict[str, Any]:
    links = {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)}
    return {"$defs": {**links, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def _rules(length: int) -> str:
    return "".join(f'r{index}: "x" r{index + 1} | "y"\n' for index in range(length)) + f'r{length}: "z"\n'


REFUSED: dict[str, dict[str, Any]] = {
    "2,000 rules as GBNF": {"grammar": ("root: r0\n" + _rules(2000)).replace(":", " ::=")},
    "patterns that all must match": {"json": {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(999)]}},
    "twice repeated": {"regex": "foo**"},
    "product of repetitions": {"regex": "(.{1,999}){999}"},
    "open class": {"regex": "["},
    "NUL": {"regex": "a\0b"},
    "1 MB": {"regex": "a" * 1_000_000},
    "look-behind": {"regex": "(?<=a)b"},
    "look-ahead": {"regex": "a(?!b)"},
    "back-reference": {"regex": r"(a)\1"},
    "a million": {"regex": "a{1000000}"},
    "many loops": {"regex": "(x|xy|xyz|y|z)*" * 2000},
    "empty regex": {"regex": " "},
    "loop without text": {"grammar": "root ::= root"},
    "lark loop without text": {"grammar": "start: start"},
    "empty grammar": {"grammar": ""},
    "not a grammar": {"grammar": "x"},
    "syntax error": {"grammar": "root ::= [a-z"},
    "unknown rule": {"grammar": "root ::= foo"},
    "nested parentheses": {"grammar": "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000},
    "nested lark parentheses": {"grammar": "start: " + "(" * 10_000 + '"a"' + ")" * 10_000},
    "long terminal": {"grammar": 'start: T\nT: ("a"{9999}){999}'},
    "own reference": {"json": {"$ref": "#"}},
    "mutual references": {"json": _MUTUAL},
    "remote reference": {"json": {"$ref": "http://169.254.169.254/"}},
    "nested schema": {"json": _deep_object(33)},
    "deeply nested schema": {"json": '{"items":' * 5000 + "{}" + "}" * 5000},
    "unknown type": {"json": {"type": "bogus"}},
    "bad pattern": {"json": {"type": "string", "pattern": "("}},
    "many items": {"json": {"type": "array", "minItems": 10**9}},
    "5 MB enum": {"json": {"enum": [f"{index:06}" * 2 for index in range(350_000)]}},
    "not JSON": {"json": "{"},
    "no schema": {"json": "5"},
    "false": {"json": False},
    "unknown format": {"json": {"type": "string", "format": "bogus"}},
    "lenient": {"json": {"x-guidance": {"lenient": True}, "contains": {}}},
    "bad whitespace": {"json": {}, "whitespace_pattern": "("},
    "1 MB of choices": {"choice": ["a" * 1000] * 1000},
    "long choice": {"choice": ["a" * 10_000]},
    "long value": {"json": {"const": {"a": "b" * 10_000}}},
    "500 properties that may be left out": {"json": _object(500, is_required=False)},
    "no choice": {"choice": []},
    "empty choice": {"choice": ["a", ""]},
    "lone surrogate": {"choice": ["\ud800"]},
}
"""Each costs its sender an error within 5 seconds, and nobody else anything."""

SERVED: dict[str, dict[str, Any]] = {
    "2,000 references in a row": {"json": _chain(2000)},
    "2,000 rules in a row": {"grammar": "start: r0\n" + _rules(2000)},
    "nested loops": {"regex": "(a+)+b"},
    "left recursion": {"grammar": 'root ::= root "a" | "b"'},
    "ambiguous": {"grammar": 'start: s\ns: s s s | "a"'},
    "unanchored": {"regex": "(.*a){50}"},
    "long": {"regex": "[0-9a-f]{5000}"},
    "1,000 properties": {"json": _object(1000, is_required=True)},
    "480 properties that may be left out": {"json": _object(480, is_required=False)},
    "10,000 values": {"json": {"enum": [f"{index:06}" for index in range(10_000)]}},
}
"""Look dangerous, and are not: matching takes time linear in the text."""
