"""Bodies of /v1/responses and /v1/messages to the chats that they ask for, and what is refused: without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import RequestError
from octavo.server.messages_api import conversation as messages_conversation
from octavo.server.messages_api.bodies import MessagesBody
from octavo.server.protocol.decoding import read_body
from octavo.server.protocol.limits import RequestLimits
from octavo.server.responses_api import conversation as responses_conversation
from octavo.server.responses_api.bodies import ResponseBody

LIMITS = RequestLimits()


def read_response(**body: Any) -> ResponseBody:
    return read_body(json.dumps(body).encode(), ResponseBody)


def read_messages(**body: Any) -> MessagesBody:
    return read_body(json.dumps({"max_tokens": 5, **body}).encode(), MessagesBody)


def of_response(given: Any, **body: Any) -> list[dict[str, Any]]:
    return responses_conversation.chat_messages(read_response(input=given, **body), LIMITS)


def of_messages(messages: Any, **body: Any) -> list[dict[str, Any]]:
    return messages_conversation.chat_messages(read_messages(messages=messages, **body), LIMITS)


def tools_of(body: ResponseBody) -> tuple[Any, Any]:
    return responses_conversation.chat_tools(body), responses_conversation.chat_choice(body)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


# ---------------------------------------------------------------- /v1/responses

CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_a_text_is_what_the_user_says_after_the_instructions() -> None:
    assert of_response("hi", instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_instructions_and_what_developers_say_first_are_one_system_message() -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "system", "content": [{"type": "input_text", "text": "Be quick."}]},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "Now be slow."},
    ]
    assert of_response(items, instructions="Be brief.") == [
        {"role": "system", "content": [text("Be brief."), text("Be kind."), text("Be quick.")]},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "Now be slow."},
    ]


def test_thoughts_calls_and_results_make_the_messages_of_a_chat() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "1 + 1?"}]},
        {"type": "reasoning", "id": "r1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {
            "type": "message", "id": "m1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "I add.", "annotations": []}],
        },
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    ]  # fmt: skip
    assert of_response(items) == [
        {"role": "user", "content": [text("1 + 1?")]},
        {
            "role": "assistant", "content": [text("I add.")], "reasoning_content": "Hm.",
            "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "c2"}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": [text("two")]},
    ]  # fmt: skip


def test_a_call_without_words_is_a_message_of_its_own() -> None:
    assert of_response([{"role": "user", "content": "x"}, CALL])[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [CHAT_CALL],
    }


def test_a_thought_without_words_is_a_message_too() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    assert of_response([thought, {"role": "user", "content": "x"}])[0] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
    }


def test_the_output_of_one_turn_can_be_the_input_of_the_next() -> None:
    from test_block_answers import OUTPUTS, make_response_answer, whole

    output = whole(make_response_answer(), OUTPUTS["all kinds"])["output"]
    (message,) = of_response(output)
    assert message["reasoning_content"] == "I add."
    assert len(message["tool_calls"]) == 2


TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
OTHER = {"type": "function", "name": "other"}


def test_tools_are_those_of_a_chat() -> None:
    body = read_response(input="x", tools=[TOOL], tool_choice="required")
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
    assert responses_conversation.chat_tools(body) == [{"type": "function", "function": function}]
    assert responses_conversation.chat_choice(body) == "required"


def test_functions_may_be_chosen() -> None:
    chosen = {"type": "function", "name": "add"}
    named = {"type": "function", "function": {"name": "add"}}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [chosen]}
    body = read_response(input="x", tools=[TOOL, OTHER], tool_choice=chosen)
    assert responses_conversation.chat_choice(body) == named
    assert responses_conversation.chat_choice(read_response(input="x", tools=[TOOL], tool_choice=allowed)) == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [named]},
    }


@pytest.mark.parametrize(
    ("given", "mentions"),
    [
        ([], "non-empty"),
        ([{"type": "computer_call"}], r"input\[0\].type is 'computer_call'"),
        ([{"type": "item_reference", "id": "m1"}], "nothing is stored"),
        ([{"role": "robot", "content": "x"}], r"input\[0\].role"),
        ([{"role": "user"}], r"input\[0\].content is required"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}], "text only"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], r"content\[0\].text is required"),
        ([{"type": "function_call", "name": "add"}], "call_id is required"),
        ([{"type": "function_call", "call_id": "c"}], "name is required"),
        ([{**CALL, "arguments": "{"}], r"input\[0\].arguments is not JSON"),
        ([{**CALL, "arguments": "[" * 9999}], r"input\[0\].arguments is not JSON"),
        ([{"type": "function_call_output", "call_id": "c"}], "output is required"),
        ([{"type": "function_call_output", "output": "x"}], "call_id is required"),
        ([{"role": "user", "content": "x"}] * 10_000, "at most 8192"),
    ],
    ids=[
        "empty", "kind", "reference", "role", "content", "image", "part without text", "call without id",
        "call without name", "torn arguments",
        "nested arguments", "result without output", "result without id", "10,000",
    ],
)  # fmt: skip
def test_items_that_cannot_be_read_are_refused(given: Any, mentions: str) -> None:
    with pytest.raises(RequestError, match=mentions) as error:
        of_response(given)
    assert error.value.parameter == "input"


@pytest.mark.parametrize(
    ("tools", "choice", "mentions"),
    [
        ([{"type": "web_search"}], None, "no tools of its own"),
        ([{"type": "function"}], None, "name is required"),
        ([TOOL], {"type": "mcp"}, "function and allowed_tools"),
        ([TOOL], {"type": "allowed_tools", "mode": "auto", "tools": "add"}, "list of functions"),
        ([TOOL], {"type": "allowed_tools", "tools": []}, r"tool_choice\.mode must be"),
    ],
    ids=["hosted", "nameless", "kind of choice", "allowed tools", "allowed without a mode"],
)
def test_tools_that_cannot_be_served_are_refused(tools: Any, choice: Any, mentions: str) -> None:
    body = read_response(input="x", tools=tools, tool_choice=choice)
    with pytest.raises(RequestError, match=mentions):
        tools_of(body)


# ---------------------------------------------------------------- /v1/messages


def test_the_system_prompt_comes_first() -> None:
    assert of_messages([{"role": "user", "content": "hi"}], system=[text("Be brief."), text("Be kind.")]) == [
        {"role": "system", "content": [text("Be brief."), text("Be kind.")]},
        {"role": "user", "content": "hi"},
    ]


def test_blocks_make_the_messages_of_a_chat() -> None:
    messages = [
        {"role": "user", "content": [text("1 + 1?")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                text("I add."),
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [text("2")], "cache_control": {}},
                {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
                text("Well?"),
                text("Go on."),
            ],
        },
    ]
    assert of_messages(messages) == [
        {"role": "user", "content": [text("1 + 1?")]},
        {"role": "assistant", "content": "I add.", "reasoning_content": "Hm.", "tool_calls": [CHAT_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("2")]},
        {"role": "tool", "tool_call_id": "c2", "content": "Error: no"},
        {"role": "user", "content": [text("Well?"), text("Go on.")]},
    ]


def test_the_model_goes_on_in_a_last_message_of_its_own() -> None:
    user = {"role": "user", "content": "hi"}
    for content in ("I", [text("I")]):
        assert messages_conversation.goes_on(read_messages(messages=[user, {"role": "assistant", "content": content}]))
    call = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
    for last in (user, {"role": "assistant", "content": [call]}):
        assert not messages_conversation.goes_on(read_messages(messages=[user, last]))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
    ],
    ids=["auto", "any", "none", "tool"],
)
def test_a_choice_is_that_of_a_chat(choice: Any, expected: Any) -> None:
    body = read_messages(messages=[{"role": "user", "content": "x"}], tool_choice=choice)
    assert messages_conversation.chat_choice(body.tool_choice) == expected


@pytest.mark.parametrize(
    ("content", "mentions"),
    [
        ([{"type": "image", "source": {}}], r"messages\[0\].content\[0\].type is 'image'"),
        ([{"type": "tool_use", "id": "c", "name": "add", "input": {}}], "cannot stand here"),
        ([{"type": "text"}], "text is required"),
        ([{"type": "tool_result"}], "tool_use_id is required"),
        ([{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}], "text only"),
        ([{"type": "tool_result", "tool_use_id": "c"}] * 10_000, "at most 8192"),
    ],
    ids=["image", "call of the user", "no text", "result of nothing", "image in a result", "10,000"],
)
def test_blocks_that_cannot_be_read_are_refused(content: Any, mentions: str) -> None:
    with pytest.raises(RequestError, match=mentions) as error:
        of_messages([{"role": "user", "content": content}])
    assert error.value.parameter == "messages"


def test_a_role_that_nobody_has_is_refused() -> None:
    with pytest.raises(RequestError, match="user, assistant or system"):
        of_messages([{"role": "robot", "content": "x"}])


@pytest.mark.parametrize("block", [{"type": "tool_use", "id": "c", "name": "a"}, {"type": "tool_use", "input": {}}])
def test_a_call_needs_all_its_parts(block: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="is required"):
        of_messages([{"role": "assistant", "content": [block]}])


def test_tools_of_anthropics_own_are_refused() -> None:
    body = read_messages(
        messages=[{"role": "user", "content": "x"}], tools=[{"type": "web_search_20250305", "name": "web_search"}]
    )
    with pytest.raises(RequestError, match="no tools of its own"):
        messages_conversation.chat_tools(body.tools)


def test_the_parts_of_all_messages_are_counted() -> None:
    words = [{"type": "text", "text": "a"}] * 20_000
    with pytest.raises(RequestError, match="messages asks for 40000 parts and tool calls"):
        of_messages([{"role": role, "content": words} for role in ("user", "assistant")])
    with pytest.raises(RequestError, match="input asks for 40000 parts and tool calls"):
        of_response([{"role": role, "content": words} for role in ("user", "assistant")])


def test_a_result_may_be_nested_only_as_deep_as_a_result_goes() -> None:
    block: dict[str, Any] = text("x")
    for _ in range(20):
        block = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    with pytest.raises(RequestError, match="cannot stand here"):
        of_messages([{"role": "user", "content": [block]}])
