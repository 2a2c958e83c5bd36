"""The form of a model's calls and thoughts, as its chat template shows it."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.server.parsers.formats import choose_format, detect_reasoning, detect_tools

HERMES = """{{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- '}\\n</tool_call>' }}"""
HERMES_ONE_LINE = """{{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' + arguments + '}' }}"""
HERMES_PROSE = 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>}\\n</tool_call>'
XML = "{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}"
LLAMA = """{{- "Environment: ipython\\n" }}{{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}"""
MISTRAL = """{{- "[TOOL_CALLS]" + tool.name + "[ARGS]" }}"""
GLM = "{{- '<tool_call>' + tc.name }}{{- '<arg_key>' + k }}"
PLURAL = """{{ '<tool_calls>[' }}{{ '{"name": "' + name }}"""
FUNCTIONARY = """{{ "Environment: ipython" }}{{ '<function=' + name + '>' }}"""


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (HERMES, "hermes"), (HERMES_ONE_LINE, "hermes"), (HERMES_PROSE, "hermes"), (XML, "qwen3_coder"),
        (LLAMA, "llama3_json"), (MISTRAL, "mistral"), (GLM, None), (PLURAL, None), (FUNCTIONARY, None),
        ("{{ x }}", None),
    ],
    ids=["qwen3", "bielik", "reka", "qwen3_coder", "llama", "mistral", "glm", "apriel", "functionary", "plain"],
)  # fmt: skip
def test_the_form_of_calls_is_seen_from_a_template(template: str, form: str | None) -> None:
    assert detect_tools(template) == form


def test_the_form_of_thoughts_is_seen_from_a_template() -> None:
    assert detect_reasoning("{{ content.split('</think>')[-1] }}") == "think"
    assert detect_reasoning("{{ content }}") is None


def test_a_name_wins_over_the_template() -> None:
    chosen = choose_format([HERMES], tool_parser="mistral", reasoning_parser="deepseek_r1")
    assert (chosen.tools, chosen.reasoning) == ("mistral", "think")


def test_none_switches_both_off() -> None:
    chosen = choose_format([HERMES + "</think>"], tool_parser="none", reasoning_parser="none")
    assert (chosen.tools, chosen.reasoning, chosen.leaves_calls) == (None, None, True)


def test_the_first_template_that_shows_a_form_says_it() -> None:
    assert choose_format(["plain", HERMES, MISTRAL]).tools == "hermes"


@pytest.mark.parametrize("option", ["tool_parser", "reasoning_parser"])
def test_an_unknown_name_is_refused_with_those_that_are_known(option: str) -> None:
    with pytest.raises(ConfigError, match=r"must be one of .*qwen3.*auto or none, got 'pythonic'"):
        choose_format([], **{option: "pythonic"})  # type: ignore[arg-type]


def test_marks_that_are_special_tokens_are_known() -> None:
    assert choose_format([MISTRAL], ["<s>", "[TOOL_CALLS]"]).has_special_marks
    assert not choose_format([HERMES], ["<|im_end|>", "[TOOL_CALLS]"]).has_special_marks


def test_a_template_that_says_nothing_of_tools_hides_them() -> None:
    assert choose_format(["{{ messages }}"]).hides_tools
    assert not choose_format(["{{ messages }}", "{{ tools }}"]).hides_tools
