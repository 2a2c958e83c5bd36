"""Parsers of tool calls by the form that they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.server.parsers.call_stream import MakeId
from octavo.server.parsers.contract import OutputParser
from octavo.server.parsers.hermes import HermesParser
from octavo.server.parsers.llama3_json import Llama3JsonParser
from octavo.server.parsers.mistral import MistralParser
from octavo.server.parsers.qwen3_coder import Qwen3CoderParser


def make_tool_parser(form: str, tools: Mapping[str, Mapping[str, Any]], call_id: MakeId) -> OutputParser:
    """Return a parser for one completion.

    Args:
        form: of `formats.TOOL_PARSERS`' values.
        tools: schemas of the parameters, by the tools' names.
    """
    if form == "hermes":
        return HermesParser(call_id)
    if form == "qwen3_coder":
        return Qwen3CoderParser(call_id, tools)
    if form == "llama3_json":
        return Llama3JsonParser(call_id, tools)
    assert form == "mistral", "checked when the server starts"
    return MistralParser(call_id)
