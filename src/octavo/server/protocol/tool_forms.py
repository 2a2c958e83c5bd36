"""Forms of outputs that contain more than the answer: calls that are demanded, and thoughts before what has a form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.server.parsers.markers import CALL_CLOSE, CALL_OPEN
from octavo.server.parsers.plan import NATIVE
from octavo.server.parsers.thoughts import CLOSE, OPEN
from octavo.structured_outputs import FramedOutputs, StructuredOutputsParams

_ANY_OBJECT = {"type": "object"}
_SPACING = " ?"
"""Between the parts of arguments: as models are taught to write JSON, and no more."""


def forced_calls(tools: Mapping[str, Mapping[str, Any]], *, form: str | None, is_parallel: bool) -> FramedOutputs:
    """Return the form of an output that calls one of the tools, or several, with arguments that fit their schemas.

    Args:
        tools: schemas of the parameters, by the tools' names.
        form: the model's; calls are written in it if it is `NATIVE`, else as the list that `ForcedListParser` reads.
    """
    key = "arguments" if form == NATIVE else "parameters"
    calls = [_call_rule(name, key, index) for index, name in enumerate(tools)]
    if form == NATIVE:
        one = f'{_quoted(CALL_OPEN)} "\\n" call "\\n" {_quoted(CALL_CLOSE)}'
        whole = f'{one} ("\\n" {one})*' if is_parallel else one
    else:
        whole = '"[" call (", " call)* "]"' if is_parallel else '"[" call "]"'
    parts: dict[str, StructuredOutputsParams] = {
        f"tool_{index}": StructuredOutputsParams(json={**_ANY_OBJECT, **schema}, whitespace_pattern=_SPACING)
        for index, schema in enumerate(tools.values())
    }
    return FramedOutputs(frame=f"start: {whole}\ncall: {' | '.join(calls)}\n", parts=parts, parameter="tools")


def or_calls(
    wanted: StructuredOutputsParams, tools: Mapping[str, Mapping[str, Any]], *, is_parallel: bool
) -> FramedOutputs:
    """Return the form of an output that has a form, or calls tools as Hermes does."""
    calls = forced_calls(tools, form=NATIVE, is_parallel=is_parallel)
    frame = calls.frame.replace("start:", "start: @answer | calls\ncalls:", 1)
    parts = {**calls.parts, "answer": wanted}
    return FramedOutputs(frame=frame, parts=parts, parameter="response_format", subject="response_format beside tools")


def after_thought(wanted: StructuredOutputsParams, *, is_open: bool) -> FramedOutputs:
    """Return the form of an output that has another form once its thought has ended.

    Args:
        is_open: the prompt has opened the thought; else the model may.
    """
    thought = "thought SPACE" if is_open else f"({_quoted(OPEN)} thought SPACE)?"
    rules = f"thought[suffix={_quoted(CLOSE)}]: /(?s:.*)/\nSPACE: /[ \\n]{{0,4}}/\n"
    if isinstance(wanted, FramedOutputs):
        frame = wanted.frame.replace("start:", f"start: {thought} whole\nwhole:", 1)
        return replace(wanted, frame=frame + rules)
    return FramedOutputs(frame=f"start: {thought} @whole\n{rules}", parts={"whole": wanted})


def _call_rule(name: str, key: str, index: int) -> str:
    head = f'{{"name": "{name}", "{key}": '
    return f'{_quoted(head)} @tool_{index} "}}"'


def _quoted(text: str) -> str:
    """Return a literal of Lark's."""
    return json.dumps(text, ensure_ascii=False)
