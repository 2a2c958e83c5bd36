"""Every form of tool calls and thoughts: what published outputs say, in one piece and in any others."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from published_outputs import MALFORMED, PUBLISHED, TOOLS, Published, make_parser, read_pieces, said

from octavo.server.parsers.contract import ArgumentsPart, CallPart, ReasoningPart, TextPart, parse_whole
from octavo.server.parsers.formats import OutputFormat
from octavo.server.parsers.plan import ReadingPlan

FORMS = ["hermes", "qwen3_coder", "llama3_json", "mistral", None]
MARKS = [
    "<tool_call>", "</tool_call>", "<function=", "now>", "<parameter=", "city>", "</parameter>", "</function>",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<think>", "</think>", '{"name": "now", "arguments": ',
    '{"name": "now", "parameters": ', "{}", "}", "]", "[", ", ", ";", "\n", " ", '"', "\\", "now", "3", "<", "é",
]  # fmt: skip


@pytest.fixture(params=PUBLISHED.values(), ids=PUBLISHED)
def published(request: pytest.FixtureRequest) -> Published:
    output: Published = request.param
    return output


def test_an_output_says_what_it_says(published: Published) -> None:
    message = parse_whole(published.parser(), published.text)
    assert said(message) == (published.reasoning, published.content, published.calls)


def test_an_output_says_the_same_a_character_at_a_time(published: Published) -> None:
    assert read_pieces(published.parser(), list(published.text)) == parse_whole(published.parser(), published.text)


def test_an_output_that_is_cut_anywhere_says_the_same_in_a_stream(published: Published) -> None:
    for end in range(len(published.text)):
        text = published.text[:end]
        assert read_pieces(published.parser(), list(text)) == parse_whole(published.parser(), text)


def test_what_was_told_of_a_cut_output_is_how_the_whole_one_begins(published: Published) -> None:
    whole = parse_whole(published.parser(), published.text)
    for end in range(len(published.text)):
        message = read_pieces(published.parser(), [published.text[:end]])
        for call, told in zip(whole.calls, message.calls, strict=False):
            assert (told.call_id, told.name) == (call.call_id, call.name)
            assert call.arguments.startswith(told.arguments)


@pytest.mark.parametrize(
    "name",
    ["hermes, one", "qwen3_coder, one", "llama3_json, one", "mistral, a list", "mistral, names"],
)
def test_arguments_are_told_as_they_come(name: str) -> None:
    parser = PUBLISHED[name].parser()
    before, _, _ = PUBLISHED[name].text.partition("ris")
    parts = [part for char in before for part in parser.push(char)]
    told = "".join(part.text for part in parts if isinstance(part, ArgumentsPart))
    assert told == '{"city": "Pa'


def test_calls_are_counted_from_zero_and_told_before_their_arguments(published: Published) -> None:
    parts = [*(parser := published.parser()).push(published.text), *parser.finish()]
    begun = -1
    for part in parts:
        if isinstance(part, CallPart):
            begun += 1
            assert part.index == begun
        elif isinstance(part, ArgumentsPart):
            assert part.index == begun


def cut(text: str, marks: list[int]) -> list[str]:
    ends = sorted({min(mark, len(text)) for mark in marks} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


@given(output=st.sampled_from(list(PUBLISHED.values())), marks=st.lists(st.integers(0, 400), max_size=12))
def test_the_pieces_of_a_stream_do_not_matter(output: Published, marks: list[int]) -> None:
    whole = parse_whole(output.parser(), output.text)
    assert read_pieces(output.parser(), cut(output.text, marks)) == whole


@given(
    form=st.sampled_from(FORMS),
    prompt=st.sampled_from(["", "<think>\n"]),
    pieces=st.lists(st.sampled_from(MARKS), max_size=14),
    marks=st.lists(st.integers(0, 120), max_size=8),
    is_forced=st.booleans(),
)
def test_whatever_is_written_is_read_and_its_pieces_do_not_matter(
    form: str | None, prompt: str, pieces: list[str], marks: list[int], is_forced: bool
) -> None:
    text = "".join(pieces)
    whole = parse_whole(make_parser(form, prompt, is_forced=is_forced), text)
    assert read_pieces(make_parser(form, prompt, is_forced=is_forced), cut(text, marks)) == whole
    assert read_pieces(make_parser(form, prompt, is_forced=is_forced), list(text)) == whole


@given(form=st.sampled_from(FORMS), text=st.text(alphabet="<>/{}[]\"' \nab:,;", max_size=60))
def test_a_text_without_a_mark_stays_as_it_is(form: str | None, text: str) -> None:
    assert parse_whole(make_parser(form, "<think></think>"), text).content == text


@pytest.mark.parametrize(("form", "text"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_call_is_text(form: str, text: str) -> None:
    message = parse_whole(make_parser(form), text)
    assert not message.calls
    assert message.content == text
    assert read_pieces(make_parser(form), list(text)) == message


def test_arguments_are_the_models_own_text() -> None:
    arguments = '{"days":  1.50, "city":"\\u00e9" }'
    text = f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>'
    assert parse_whole(make_parser("hermes"), text).calls[0].arguments == arguments


def test_an_unknown_function_is_called_where_marks_say_that_it_is_a_call() -> None:
    text = '<tool_call>{"name": "unheard_of", "arguments": {}}</tool_call>'
    assert [call.name for call in parse_whole(make_parser("hermes"), text).calls] == ["unheard_of"]


def test_text_behind_a_call_is_kept() -> None:
    text = 'A <tool_call>{"name": "now", "arguments": {}}</tool_call>\nB'
    assert parse_whole(make_parser("hermes"), text).content == "A\nB"


def test_a_call_with_a_brace_too_many_is_one() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}}</tool_call>'
    message = parse_whole(make_parser("hermes"), text)
    assert [call.name for call in message.calls] == ["now"]
    assert message.content == "}</tool_call>"


def test_a_demanded_list_is_read() -> None:
    text = '[{"name": "get_weather", "parameters": {"city": "Paris"}}, {"name": "now", "parameters": {}}]'
    message = parse_whole(make_parser(None, is_forced=True), text)
    assert said(message) == ("", "", [("get_weather", {"city": "Paris"}), ("now", {})])


def test_only_so_many_calls_are_told_as_are_wanted() -> None:
    output = PUBLISHED["hermes, two behind text"]
    message = parse_whole(make_parser("hermes", max_calls=1), output.text)
    assert [call.name for call in message.calls] == ["get_weather"]


def test_a_thought_can_be_left_out() -> None:
    output = PUBLISHED["a thought"]
    assert said(parse_whole(make_parser(None, shows_reasoning=False), output.text)) == ("", output.content, [])


def test_a_thought_that_never_ends_is_all_there_is() -> None:
    assert said(parse_whole(make_parser(None, "<think>\n"), "Hm. <tool_call>")) == ("Hm. <tool_call>", "", [])


def test_a_message_that_goes_on_may_be_within_its_thought() -> None:
    text = "more\n</think>\n\nYes"
    assert said(parse_whole(make_parser(None, "<think>\nsome", continues=True), text)) == ("more", "Yes", [])
    assert said(parse_whole(make_parser(None, "<think>\n</think>Ye", continues=True), "s <think>"))[1] == "s <think>"


def test_without_tools_calls_are_text() -> None:
    output = PUBLISHED["hermes, one"]
    plan = ReadingPlan(OutputFormat("hermes"))
    assert parse_whole(plan.make_parsers("", "id")(0), output.text).content == output.text


def test_ids_of_calls_differ_between_completions_and_requests() -> None:
    plan = ReadingPlan(OutputFormat("hermes"), TOOLS)
    text = PUBLISHED["hermes, two behind text"].text
    ids = [
        call.call_id
        for request in ("a", "b")
        for index in (0, 1)
        for call in parse_whole(plan.make_parsers("", request)(index), text).calls
    ]
    assert len(set(ids)) == len(ids) == 8


def test_mistrals_ids_are_nine_letters_or_its_own() -> None:
    parser = make_parser("mistral")
    ids = [call.call_id for call in parse_whole(parser, PUBLISHED["mistral, a list"].text).calls]
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)
    own = parse_whole(make_parser("mistral"), PUBLISHED["mistral, names with ids"].text)
    assert own.calls[0].call_id == "abcdefghi"


def test_text_is_told_as_it_comes() -> None:
    parser = make_parser("hermes", "</think>")
    assert parser.push("Hello") == [TextPart("Hello")]
    assert parser.push(" <tool") == []
    assert parser.push("s>") == [TextPart(" <tools>")]


def test_a_thought_is_told_as_it_comes() -> None:
    parser = make_parser(None, "<think>\n")
    assert parser.push("\nHm ") == [ReasoningPart("Hm")]
    assert parser.push("so</") == [ReasoningPart(" so")]
    assert parser.push("think>\n\n") == []
    assert parser.push("Yes") == [TextPart("Yes")]
