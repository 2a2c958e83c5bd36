"""The JSON Schema Test Suite, draft 2020-12, against our masks: data/json_schema_suite, MIT, by the suite's authors.

A schema is either refused with a reason, or served: then no invalid instance gets through, and what a model that knows
nothing is made to write is valid.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from grammar_helpers import accepts, compile_grammar, make_matcher, random_output

from octavo import RequestError
from octavo.grammar.compiler import GrammarCompiler

SUITE = Path(__file__).parents[1] / "data" / "json_schema_suite" / "draft2020-12.json"
CASES: list[dict[str, Any]] = json.loads(SUITE.read_text(encoding="utf-8"))
LEAST_SERVED = 220
"""Schemas of the 368."""
LEAST_ACCEPTED = 0.9
"""Share of the valid instances of served schemas: masks want properties in the schema's order, for one."""
NUM_OUTPUTS = 3


@functools.cache
def served_cases() -> list[int]:
    """Indices of the schemas that are not refused."""
    from grammar_helpers import make_compiler

    compiler = make_compiler()
    return [index for index, case in enumerate(CASES) if _is_served(compiler, case["schema"])]


def _is_served(compiler: GrammarCompiler, schema: Any) -> bool:
    try:
        compile_grammar(compiler, json=schema)
    except RequestError:
        return False
    return True


def test_enough_of_the_suite_is_served() -> None:
    assert len(CASES) == 368
    assert len(served_cases()) >= LEAST_SERVED


def test_no_invalid_instance_gets_through(compiler: GrammarCompiler) -> None:
    let_through = []
    num_valid = num_accepted = 0
    for index in served_cases():
        grammar = compile_grammar(compiler, json=CASES[index]["schema"])
        for test in CASES[index]["tests"]:
            accepted = accepts(grammar, json.dumps(test["data"], ensure_ascii=False))
            if accepted and not test["valid"]:
                let_through.append((CASES[index]["description"], test["description"]))
            num_valid += test["valid"]
            num_accepted += accepted and test["valid"]
    assert let_through == []
    assert num_accepted / num_valid >= LEAST_ACCEPTED


@pytest.mark.parametrize("keyword", sorted({case["keyword"] for case in CASES}))
def test_what_a_model_is_made_to_write_is_valid(compiler: GrammarCompiler, keyword: str) -> None:
    served = [CASES[index]["schema"] for index in served_cases() if CASES[index]["keyword"] == keyword]
    for schema in served:
        for seed in range(NUM_OUTPUTS):
            output = random_output(make_matcher(compiler, {"json": schema}), seed)
            assert output is not None, schema
            jsonschema.validate(json.loads(output), schema, jsonschema.Draft202012Validator)
