"""Forms within a form: what a server makes of demanded calls, and of a form behind a thought."""

from __future__ import annotations

from typing import Any

import pytest
from grammar_helpers import accepts

from octavo import RequestError
from octavo.grammar.compiler import GrammarCompiler
from octavo.structured_outputs import FramedOutputs, StructuredOutputsParams


def make_frame(frame: str, **parts: dict[str, Any]) -> FramedOutputs:
    return FramedOutputs(
        frame=frame,
        parts={name: StructuredOutputsParams(**part) for name, part in parts.items()},
        parameter="tools",
    )


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ({"regex": "[a-c]+"}, "abc", "abd"),
        ({"choice": ["a", "ab"]}, "ab", "b"),
        ({"grammar": 'root ::= "a" b*\nb ::= [0-9]'}, "a12", "b"),
        ({"grammar": 'start: "a" B*\nB: /[0-9]/'}, "a12", "b"),
        ({"json_object": True}, '{"a": 1}', "[]"),
        ({"json": {"type": "integer"}}, "5", '"5"'),
    ],
    ids=str,
)
def test_every_kind_of_form_can_stand_in_a_frame(
    compiler: GrammarCompiler, part: dict[str, Any], good: str, bad: str
) -> None:
    grammar = compiler.compile(make_frame('start: "<" @one ">" @one', one=part))
    assert accepts(grammar, f"<{good}>{good}")
    assert not accepts(grammar, f"<{bad}>{good}")
    assert not accepts(grammar, f"<{good}>{bad}")


def test_forms_in_a_frame_keep_their_options(compiler: GrammarCompiler) -> None:
    spaced = {"json": {"type": "array"}, "whitespace_pattern": " ?"}
    tight = {"json": {"type": "array"}, "disable_any_whitespace": True}
    grammar = compiler.compile(make_frame('start: "a" @spaced | "b" @tight', spaced=spaced, tight=tight))
    given = ["a[1, 2]", "a[1,  2]", "b[1,2]", "b[1, 2]"]
    assert [text for text in given if accepts(grammar, text)] == ["a[1, 2]", "b[1,2]"]


def test_equal_frames_are_compiled_once(compiler: GrammarCompiler) -> None:
    first = compiler.compile(make_frame('start: "a" @one', one={"json": {"type": "integer"}}))
    assert compiler.compile(make_frame('start: "a" @one', one={"json": '{"type": "integer"}'})) is first
    assert compiler.compile(make_frame('start: "b" @one', one={"json": {"type": "integer"}})) is not first


@pytest.mark.parametrize(
    ("part", "reason"),
    [({"regex": "(?=a)b"}, "look"), ({"json": {"unknownKeyword": 1}}, "unknownKeyword"), ({"json": "{"}, "not JSON")],
    ids=str,
)
def test_a_form_that_cannot_be_served_is_told_under_the_field_that_asked(
    compiler: GrammarCompiler, part: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        compiler.compile(make_frame("start: @one", one=part))
    assert refusal.value.parameter == "tools"
