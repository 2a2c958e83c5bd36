"""From `StructuredOutputsParams` to the text that llguidance compiles, within limits on what that may cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema import check_schema, without_additional_properties
from octavo.grammar.lark_limits import check_terminals
from octavo.grammar.regex_limits import MAX_WRITTEN_OUT, check_regex
from octavo.structured_outputs import schema_value

if TYPE_CHECKING:
    from octavo.structured_outputs import StructuredOutputsParams

MAX_CHARS = {"json": 1 << 18, "regex": 1 << 15, "choice": 1 << 16, "grammar": 1 << 16, "json_object": 1 << 10}
"""Of each kind of source: compiling the largest takes well under a second."""


def canonical_source(params: StructuredOutputsParams) -> str:
    """Return what was given as one text: equal for equal grammars, up to the order of keys.

    Raises: ValueError if it is too long; `RequestError` if a schema's text is not JSON.
    """
    value: Any = getattr(params, params.kind)
    if params.kind == "json":
        _check_length("json", len(value) if isinstance(value, str) else 0)
        value = schema_value(value)
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, RecursionError):
        raise ValueError("the json schema has values that JSON has not, or is nested too deeply") from None
    _check_length(params.kind, len(text))
    return text


def library_grammar(params: StructuredOutputsParams, source: str) -> str:
    """Return the grammar in llguidance's own notation.

    Raises: ValueError with the reason why it cannot be served.
    """
    from llguidance import LLMatcher

    if params.kind == "regex":
        check_regex(source)
        return LLMatcher.grammar_from_regex(source)
    if params.kind == "choice":
        if max(map(len, params.choice or ())) > MAX_WRITTEN_OUT:
            raise ValueError(f"a choice is longer than {MAX_WRITTEN_OUT} characters")
        choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in params.choice or ())
        return LLMatcher.grammar_from_lark(f"start: {choices}")
    if params.kind == "grammar":
        lark = _as_lark(source)
        check_terminals(lark)
        return LLMatcher.grammar_from_lark(lark)
    return _json_grammar(params, source)


def _json_grammar(params: StructuredOutputsParams, source: str) -> str:
    from llguidance import LLMatcher

    schema: Any = {"type": "object"}
    if params.kind == "json":
        schema = json.loads(source)
        check_schema(schema)
        schema = {} if schema is True else schema
    if params.disable_additional_properties:
        schema = without_additional_properties(schema)
    if params.whitespace_pattern is not None:
        check_regex(params.whitespace_pattern)
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_pattern": params.whitespace_pattern}
        )
    flexible = not params.disable_any_whitespace
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": flexible})


def _as_lark(source: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(source)
    except RecursionError:
        raise ValueError("the grammar is nested too deeply") from None
    except Exception as error:  # the converter has no errors of its own for most faults
        raise ValueError(f"the grammar cannot be read: {error}") from None


def _check_length(kind: str, num_chars: int) -> None:
    if num_chars > MAX_CHARS[kind]:
        raise ValueError(f"{kind} has {num_chars} characters; at most {MAX_CHARS[kind]} can be served")
