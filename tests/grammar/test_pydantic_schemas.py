"""Schemas of pydantic models, as pydantic and openai write them, are served, and what comes out is an instance."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from grammar_helpers import make_matcher, random_output
from pydantic import BaseModel
from pydantic_models import MODELS, Money, Times

from octavo.grammar.compiler import GrammarCompiler

NUM_OUTPUTS = 3
SAY_MORE_THAN_THEIR_SCHEMAS: set[type[BaseModel]] = {Money, Times}
"""Any text may be a Decimal by its schema; and dates of the year 0 are none for Python."""


def own_schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Nothing optional, nothing additional: what `chat.completions.parse` sends."""
    parameters: Any = openai.pydantic_function_tool(model)["function"]["parameters"]
    return dict(parameters)


@pytest.mark.parametrize("make_schema", [own_schema, strict_schema])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_what_a_model_is_made_to_write_is_an_instance(
    compiler: GrammarCompiler, model: type[BaseModel], make_schema: Any
) -> None:
    schema = make_schema(model)
    for seed in range(NUM_OUTPUTS):
        output = random_output(make_matcher(compiler, {"json": schema}), seed)
        assert output is not None
        jsonschema.validate(json.loads(output), schema, jsonschema.Draft202012Validator)
        if model not in SAY_MORE_THAN_THEIR_SCHEMAS:
            model.model_validate_json(output)
