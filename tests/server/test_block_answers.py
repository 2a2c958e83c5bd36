"""Outputs to the items of /v1/responses and the blocks of /v1/messages: without a server, by real parsers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from face_fakes import EOS, ByteTokenizer
from jiter import from_json

from octavo.outputs import CompletionOutput, RequestOutput
from octavo.server.messages_api.answer import MessagesAnswer
from octavo.server.parsers.contract import OutputParser
from octavo.server.parsers.formats import OutputFormat
from octavo.server.parsers.plan import ReadingPlan
from octavo.server.protocol.answers import Answer
from octavo.server.protocol.errors import ApiError
from octavo.server.responses_api.answer import ResponseAnswer
from octavo.server.responses_api.objects import ResponseObject

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "é"}}\n</tool_call>'
TWO_CALLS = f"{CALL}\n{CALL}"
CUTS = {
    "behind a value": 49,
    "in a name": 52,
    "behind a name": 53,
    "in a text": 57,
    "behind a text": 58,
    "after it": 60,
}
OUTPUTS = {
    "nothing": "",
    "text": "Fürwahr, a text.",
    "a thought and a text": "<think>\nHm, ü.\n</think>\n\nYes.",
    "a thought that is cut": "<think>Hm, and then",
    "all kinds": f"<think>I add.</think>I look it up.\n{TWO_CALLS}",
    **{f"a call that is cut {name}": CALL[:end] for name, end in CUTS.items()},
}
ARGUMENTS = '{"a": 2, "b": "é"}'


def make_parser() -> OutputParser:
    plan = ReadingPlan(OutputFormat(tools="hermes", reasoning="think"), tools={"add": {"type": "object"}})
    return plan.make_parsers("what is 2 + 2?", "1")(0)


def make_response_answer() -> Answer:
    response = ResponseObject(id="resp_1", created_at=5, model="m", temperature=0.0, top_p=1.0)
    return ResponseAnswer(response, make_parser(), ByteTokenizer(), num_top=None, tells_cached_tokens=True)


def make_messages_answer() -> Answer:
    return MessagesAnswer("msg_1", "m", make_parser(), tells_cached_tokens=True)


def make_output(text: str, reason: str | None = None, stop_reason: str | None = None) -> RequestOutput:
    ids = [*text.encode(), *([EOS] if reason == "stop" else [])]
    completion = CompletionOutput(0, text, ids, finish_reason=reason, stop_reason=stop_reason)
    return RequestOutput("1", None, [1] * 10, None, [completion], reason is not None, num_cached_tokens=4)


def whole(answer: Answer, text: str, reason: str = "stop", stop_reason: str | None = None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(answer.body([make_output(text, reason, stop_reason)]))
    return document


def events_of(frames: bytes) -> list[dict[str, Any]]:
    events = []
    for frame in frames.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def stream(answer: Answer, pieces: list[str], reason: str = "stop") -> list[dict[str, Any]]:
    frames = b"".join(answer.chunk(0, make_output(piece)) for piece in pieces)
    return events_of(frames + answer.chunk(0, make_output("", reason)) + answer.end())


def cut(text: str, seed: int) -> list[str]:
    chosen = random.Random(seed)
    places = sorted(chosen.sample(range(len(text) + 1), min(len(text), chosen.randint(0, 12))))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


# ---------------------------------------------------------------- /v1/responses


def test_an_item_follows_the_other() -> None:
    output = whole(make_response_answer(), OUTPUTS["all kinds"])["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "I add."}]
    assert output[1]["content"][0]["text"].strip() == "I look it up."
    assert all(json.loads(call["arguments"]) == json.loads(ARGUMENTS) for call in output[2:])
    assert {item["status"] for item in output} == {"completed"}
    assert len({item["id"] for item in output}) == 4
    assert output[2]["call_id"] != output[3]["call_id"]


def test_the_events_of_a_response_come_in_order() -> None:
    text = f"<think>A</think>B{CALL}"
    events = stream(make_response_answer(), [text])
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", *["function_call_arguments.delta"] * count(events, "arguments.delta"),
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.done"] == [0, 1, 2]


def count(events: list[dict[str, Any]], end: str) -> int:
    return sum(event["type"].endswith(end) for event in events)


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_streamed_response_ends_as_the_whole_one(name: str, reason: str) -> None:
    text = OUTPUTS[name]
    expected = whole(make_response_answer(), text, reason)
    for seed in range(25):
        events = stream(make_response_answer(), cut(text, seed), reason)
        assert events[-1]["response"] == expected
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == expected["output"]
        assert [told(events, index) for index in range(len(done))] == [text_of(item) for item in done]


def told(events: list[dict[str, Any]], index: int) -> str:
    return "".join(event["delta"] for event in events if "delta" in event and event["output_index"] == index)


def text_of(item: dict[str, Any]) -> str:
    text: str = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
    return text


def test_an_answer_that_is_cut_says_so() -> None:
    response = whole(make_response_answer(), OUTPUTS["a thought and a text"], "length")
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    events = stream(make_response_answer(), ["a"], "length")
    assert events[-1]["type"] == "response.incomplete"


def test_tokens_of_thoughts_are_counted() -> None:
    usage = whole(make_response_answer(), "<think>Hm.</think>Yes.")["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": len("<think>Hm.")}
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 23, 33)


def test_no_output_is_a_message_without_text() -> None:
    (item,) = whole(make_response_answer(), "")["output"]
    assert item["content"][0]["text"] == ""


def test_a_response_that_fails_after_it_began_says_why() -> None:
    answer = make_response_answer()
    answer.chunk(0, make_output("a"))
    (event,) = events_of(answer.failure(ApiError(500, "broken")))
    assert event["type"] == "response.failed"
    assert event["sequence_number"] == 5
    assert event["response"]["error"] == {"code": "server_error", "message": "broken"}
    assert event["response"]["status"] == "failed"


# ---------------------------------------------------------------- /v1/messages


def test_a_block_follows_the_other() -> None:
    message = whole(make_messages_answer(), OUTPUTS["all kinds"])
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert message["content"][0]["thinking"] == "I add."
    assert message["content"][2]["input"] == {"a": 2, "b": "é"}
    assert message["stop_reason"] == "tool_use"


def test_the_events_of_a_message_come_in_order() -> None:
    events = stream(make_messages_answer(), [f"<think>A</think>B{CALL}"])
    shown = [
        event["delta"]["type"] if event["type"] == "content_block_delta" else event["type"].removeprefix("content_")
        for event in events
    ]
    assert shown == [
        "message_start", "ping",
        "block_start", "thinking_delta", "block_stop",
        "block_start", "text_delta", "block_stop",
        "block_start", *["input_json_delta"] * shown.count("input_json_delta"), "block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_streamed_message_is_the_whole_one(name: str, reason: str) -> None:
    text = OUTPUTS[name]
    expected = whole(make_messages_answer(), text, reason)
    for seed in range(25):
        assert assembled(stream(make_messages_answer(), cut(text, seed), reason)) == expected


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a message together from its events, as a client does."""
    message: dict[str, Any] = events[0]["message"]
    arguments: dict[int, str] = {}
    for event in events[1:]:
        if event["type"] == "content_block_start":
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], message["content"][event["index"]]
            if delta["type"] == "input_json_delta":
                arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] += delta[name]
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] = event["usage"]
    for index, text in arguments.items():
        message["content"][index]["input"] = from_json(text.encode(), partial_mode=True)  # as Anthropic's client does
    assert events[-1]["type"] == "message_stop"
    return message


def test_a_call_that_is_cut_has_the_members_that_are_whole() -> None:
    message = whole(make_messages_answer(), OUTPUTS["a call that is cut in a text"], "length")
    assert message["stop_reason"] == "max_tokens"
    assert [(block["type"], block["input"]) for block in message["content"]] == [("tool_use", {"a": 2})]


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
    ],
    ids=["end", "stop sequence", "length"],
)
def test_a_message_says_why_it_ended(reason: str, stop: str | None, expected: tuple[str, str | None]) -> None:
    message = whole(make_messages_answer(), "text", reason, stop)
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_cached_tokens_are_not_among_the_input_tokens() -> None:
    usage = whole(make_messages_answer(), "abc")["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (6, 4, 4)


def test_a_message_that_fails_after_it_began_says_why() -> None:
    answer = make_messages_answer()
    answer.chunk(0, make_output("a"))
    (event,) = events_of(answer.failure(ApiError(503, "gone")))
    assert event == {"type": "error", "error": {"type": "overloaded_error", "message": "gone"}}
