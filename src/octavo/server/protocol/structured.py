"""What a body says about the form of the output, in OpenAI's words or in vLLM's, to `StructuredOutputsParams`."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from octavo.server.protocol.fields import refuse_field
from octavo.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from octavo.server.protocol.bodies import GenerationBody


def structured_outputs(body: GenerationBody) -> StructuredOutputsParams | None:
    """Return the form that the output must have, if any. Raises: `RequestError` naming the field."""
    wanted = None if body.response_format is None else _from_response_format(body.response_format)
    if not body.structured_outputs:
        return wanted
    if wanted is not None:
        refuse_field("response_format", "and structured_outputs exclude each other")
    return StructuredOutputsParams.from_mapping(body.structured_outputs)


def _from_response_format(wanted: dict[str, Any]) -> StructuredOutputsParams | None:
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind != "json_schema":
        refuse_field("response_format.type", f"must be text, json_object or json_schema, got {reprlib.repr(kind)}")
    named = wanted.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, (dict, bool)):
        refuse_field("response_format.json_schema", "needs a schema, as an object")
    return StructuredOutputsParams(json=schema)
