"""From `StructuredOutputsParams` to the text that llguidance compiles, within limits on what that may cost."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.grammar.json_schema import check_nesting, check_schema, without_additional_properties
from octavo.grammar.lark_limits import check_terminals
from octavo.grammar.regex_limits import MAX_WRITTEN_OUT, check_regex
from octavo.grammar.schema_rewrites import rewrite_schema
from octavo.structured_outputs import FramedOutputs, schema_value

if TYPE_CHECKING:
    from octavo.structured_outputs import StructuredOutputsParams

MAX_CHARS = {
    "json": 1 << 18, "regex": 1 << 15, "choice": 1 << 16, "grammar": 1 << 16, "json_object": 1 << 10,
    "frame": 1 << 18,
}  # fmt: skip
"""Of each kind of source: compiling the largest takes well under a second."""


class JsonOptions(NamedTuple):
    """How JSON is written, where the form is JSON."""

    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


def canonical_source(params: StructuredOutputsParams) -> str:
    """Return what was given as one text: equal for equal grammars, up to the order of keys.

    Raises: ValueError if it is too long; `RequestError` if a schema's text is not JSON.
    """
    if isinstance(params, FramedOutputs):
        parts = {name: (part.kind, canonical_source(part), json_options(part)) for name, part in params.parts.items()}
        return _within("frame", json.dumps([params.frame, parts], ensure_ascii=False))
    value: Any = getattr(params, params.kind)
    if _is_longer(value, MAX_CHARS[params.kind]):
        raise _too_long(params.kind)
    return _within(params.kind, _as_text(schema_value(value) if params.kind == "json" else value))


def json_options(params: StructuredOutputsParams) -> JsonOptions:
    """Return what the grammar depends on besides its kind and source."""
    return JsonOptions(params.disable_any_whitespace, params.disable_additional_properties, params.whitespace_pattern)


def library_grammar(kind: str, source: str, options: JsonOptions) -> str:
    """Return the grammar in llguidance's own notation.

    Raises: ValueError with the reason why it cannot be served.
    """
    from llguidance import LLMatcher

    if kind == "frame":
        return _framed_grammar(source)
    if kind == "regex":
        check_regex(source)
        return LLMatcher.grammar_from_regex(source)
    if kind == "choice":
        choices = json.loads(source)
        if max(map(len, choices)) > MAX_WRITTEN_OUT:
            raise ValueError(f"a choice is longer than {MAX_WRITTEN_OUT} characters")
        alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        return LLMatcher.grammar_from_lark(f"start: {alternatives}")
    if kind == "grammar":
        lark = _as_lark(source)
        check_terminals(lark)
        return LLMatcher.grammar_from_lark(lark)
    schema: Any = json.loads(source) if kind == "json" else {"type": "object"}
    return _json_grammar(schema, options)


def _framed_grammar(source: str) -> str:
    frame, parts = json.loads(source)
    grammars: list[dict[str, Any]] = [{"lark_grammar": frame}]
    for name, (kind, text, options) in parts.items():
        grammar = library_grammar(kind, text, JsonOptions(*options))
        if kind in ("choice", "grammar"):  # the library takes Lark as it is
            grammars.append({"name": name, "lark_grammar": grammar})
        else:
            grammars += [{**member, "name": name} for member in json.loads(grammar)["grammars"]]
    return json.dumps({"grammars": grammars})


def _json_grammar(schema: Any, options: JsonOptions) -> str:
    from llguidance import LLMatcher

    check_nesting(schema)
    schema = rewrite_schema(schema)
    check_schema(schema)
    schema = {} if schema is True else schema
    if options.disable_additional_properties:
        schema = without_additional_properties(schema)
    if options.whitespace_pattern is not None:
        check_regex(options.whitespace_pattern)
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_pattern": options.whitespace_pattern}
        )
    flexible = not options.disable_any_whitespace
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": flexible})


def _as_lark(source: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(source)
    except RecursionError:
        raise ValueError("the grammar is nested too deeply") from None
    except Exception as error:  # the converter has no errors of its own for most faults
        raise ValueError(f"the grammar cannot be read: {error}") from None


def _within(kind: str, text: str) -> str:
    if len(text) > MAX_CHARS[kind]:
        raise _too_long(kind)
    return text


def _too_long(kind: str) -> ValueError:
    return ValueError(f"{kind} has more than {MAX_CHARS[kind]} characters")


def _as_text(value: Any) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, RecursionError):
        raise ValueError("the json schema has values that JSON has not, or is nested too deeply") from None


def _is_longer(value: Any, limit: int) -> bool:
    """Whether a value has certainly more characters than that. Looks at no more of it than it must."""
    parts, size = [value], 0
    while parts and size <= limit:
        part = parts.pop()
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, (list, tuple)):
            size += len(part)
            parts.extend(part[:limit])
        elif isinstance(part, dict):
            size += sum(len(name) for name in islice(part, limit) if isinstance(name, str))
            parts.extend(islice(part.values(), limit))
    return size > limit
