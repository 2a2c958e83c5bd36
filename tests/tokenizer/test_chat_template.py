"""Chat templates: the environment their authors expect, in a sandbox, with errors that end one request only."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import RequestError
from octavo.tokenizer.chat_template import render_chat

HI = [{"role": "user", "content": "hi"}]
CHATML = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_generation_prompt_is_added_on_request() -> None:
    assert render_chat(CHATML, HI) == "<user>hi</>"
    assert render_chat(CHATML, HI, add_generation_prompt=True) == "<user>hi</><assistant>"


def test_blocks_are_trimmed_as_authors_expect() -> None:
    assert render_chat("{% if true %}\n  {% set x = 1 %}\nA{{ x }}\n{% endif %}\nB\n", HI) == "A1\nB"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        pytest.param(
            "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01", id="break"
        ),
        pytest.param("{% generation %}x{{ 1 }}{% endgeneration %}", "x1", id="generation"),
        pytest.param("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}', id="tojson"),
        pytest.param("{{ [1] | tojson(indent=2) }}", "[\n  1\n]", id="tojson-indent"),
        pytest.param("{{ strftime_now('%%') }}", "%", id="strftime"),
        pytest.param("{{ bos_token }}{{ enable_thinking }}{{ tools[0].name }}", "<s>Falsef", id="variables"),
        pytest.param("{{ tools is none }}{{ documents is none }}", "FalseTrue", id="absent-is-none"),
    ],
)
def test_the_environment_has_what_templates_use(template: str, text: str) -> None:
    rendered = render_chat(
        template,
        HI,
        tools=[{"name": "f"}],
        special_tokens={"bos_token": "<s>"},
        chat_template_kwargs={"enable_thinking": False},
    )
    assert rendered == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param("{{ raise_exception('system must be first') }}", "system must be first", id="refusal"),
        pytest.param("{% if %}", "not valid: line 1", id="syntax"),
        pytest.param("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses", id="escape"),
        pytest.param("{{ messages.append(1) }}", "refuses", id="mutation"),
        pytest.param("{{ messages[0].absent.field }}", "no attribute 'absent'", id="undefined"),
        pytest.param("{{ 1 + 'a' }}", "TypeError", id="type-error"),
        pytest.param("{% for i in range(10**9) %}{% endfor %}", "Range too big", id="huge-range"),
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endfor %}",
            "wrote more than",
            id="endless-output",
        ),
        pytest.param("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError", id="endless-recursion"),
        pytest.param("{% break %}", "not valid", id="break-outside-loop"),
        pytest.param("{{ (10**5000)|string }}", "not valid|failed", id="long-number"),
        pytest.param(r"{{ '\ud800' }}", "lone surrogate", id="surrogate"),
        pytest.param(r"{{ raise_exception('\ud800') }}", r"\\ud800", id="surrogate-in-refusal"),
    ],
)
def test_a_template_that_fails_ends_the_request(template: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render_chat(template, HI)


@pytest.mark.parametrize("name", ["self", "template", "variables", "cls", "args"])
def test_a_template_variable_may_have_any_other_name(name: str) -> None:
    assert render_chat("{{ messages[0].content }}", HI, chat_template_kwargs={name: 1}) == HI[0]["content"]


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "chat_template", "tokenize"])
def test_template_variables_cannot_replace_arguments(name: str) -> None:
    with pytest.raises(RequestError, match="argument of its own"):
        render_chat(CHATML, HI, chat_template_kwargs={name: 1})


def test_the_final_message_can_be_continued() -> None:
    messages = [*HI, {"role": "assistant", "content": " Sure: "}]
    assert render_chat(CHATML, messages, continue_final_message=True) == "<user>hi</><assistant> Sure: "
    trimming = CHATML.replace("m['content']", "m['content'] | trim")
    assert render_chat(trimming, messages, continue_final_message=True) == "<user>hi</><assistant>Sure:"


def test_continuing_needs_a_final_message_and_no_new_one() -> None:
    with pytest.raises(RequestError, match="exclude each other"):
        render_chat(CHATML, HI, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(RequestError, match="writes out unchanged"):
        render_chat("fixed", HI, continue_final_message=True)


PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
READS_PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
READS_EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        pytest.param(CHATML, PARTS, "<user>a\nb</>", id="parts-to-string-template"),
        pytest.param(READS_PARTS, PARTS, "[a][b]", id="parts-to-parts-template"),
        pytest.param(READS_PARTS, HI, "[hi]", id="string-to-parts-template"),
        pytest.param(READS_EITHER, HI, "hi", id="string-to-either"),
        pytest.param(READS_EITHER, PARTS, "[a][b]", id="parts-to-either"),
    ],
)
def test_content_reaches_the_template_in_the_form_it_reads(template: str, messages: list[Any], text: str) -> None:
    assert render_chat(template, messages) == text


def test_arguments_of_tool_calls_become_objects() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert render_chat("{{ messages[0].tool_calls[0].function.arguments.x + 1 }}", messages) == "2"
    assert call["function"]["arguments"] == '{"x": 1}'  # type: ignore[index]


@pytest.mark.parametrize("function", [{"name": "f"}, {"name": "f", "arguments": None}, {"name": "f", "arguments": ""}])
def test_a_call_without_arguments_has_none(function: dict[str, Any]) -> None:
    messages = [{"role": "assistant", "tool_calls": [{"function": function}]}]
    assert render_chat("{{ messages[0].tool_calls[0].function.arguments | tojson }}", messages) == "{}"


def test_templates_may_look_into_the_content_of_a_message_that_only_calls() -> None:
    template = "{% if '</think>' in messages[0].content %}x{% endif %}{{ messages[0].content | length }}"
    messages = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]
    assert render_chat(template, messages) == "0"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_templates_read_a_thought_by_its_older_name(name: str) -> None:
    messages = [{"role": "assistant", "content": None, name: "Hm."}]
    assert render_chat("{{ messages[0].reasoning_content }}{{ messages[0].content }}", messages) == "Hm."


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        pytest.param([], "non-empty list", id="empty"),
        pytest.param(None, "non-empty list", id="none"),
        pytest.param("hi", "non-empty list", id="string"),
        pytest.param([HI[0], 5], r"messages\[1\]", id="not-a-dict"),
        pytest.param([{"content": "x"}], r"messages\[0\]\.role", id="no-role"),
        pytest.param([{"role": "user"}], "neither content nor tool_calls", id="no-content"),
        pytest.param([{"role": "user", "content": 5}], r"messages\[0\]\.content", id="content-number"),
        pytest.param(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "reads text only", id="image"
        ),
        pytest.param(
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], "not JSON", id="tool-arguments"
        ),
    ],
)
def test_wrong_messages_are_named_by_index(messages: Any, where: str) -> None:
    with pytest.raises(RequestError, match=where):
        render_chat(CHATML, messages)


@pytest.mark.parametrize(
    "arguments", [{"tools": 5}, {"tools": [5]}, {"tools": {"name": "f"}}, {"documents": "a"}], ids=repr
)
def test_tools_and_documents_are_lists_of_dicts(arguments: Any) -> None:
    with pytest.raises(RequestError, match="must be a list of dicts"):
        render_chat(CHATML, HI, **arguments)
