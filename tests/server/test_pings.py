"""Streams in which nothing is said for a while, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from face_fakes import ByteTokenizer

from octavo.errors import EngineDeadError
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.server import answering
from octavo.server.messages_api.answer import MessagesAnswer
from octavo.server.parsers.formats import OutputFormat
from octavo.server.parsers.plan import ReadingPlan
from octavo.server.protocol.answers import Answer
from octavo.server.responses_api.answer import ResponseAnswer
from octavo.server.responses_api.objects import ResponseObject


class Silence(int):
    """Nothing is said until so many pings were sent."""


class FakeGeneration:
    """Says texts, is silent, or fails."""

    def __init__(self, script: Sequence[str | Silence | Exception], sent: list[dict[str, Any]]) -> None:
        self._script = script
        self._sent = sent

    async def __aiter__(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        for index, entry in enumerate(self._script):
            if isinstance(entry, Silence):
                while sum(b"event: ping" in message.get("body", b"") for message in self._sent) < entry:
                    await asyncio.sleep(0.005)
            elif isinstance(entry, Exception):
                raise entry
            else:
                reason = "stop" if index == len(self._script) - 1 else None
                completion = CompletionOutput(0, entry, list(entry.encode()), finish_reason=reason)
                yield 0, RequestOutput("1", None, [1] * 10, None, [completion], reason is not None)

    def close(self) -> None:
        """Nothing runs."""


def make_messages_answer() -> Answer:
    parser = ReadingPlan(OutputFormat(tools=None, reasoning=None), tools={}).make_parsers("hi", "1")(0)
    return MessagesAnswer("msg_1", "m", parser, tells_cached_tokens=True)


def make_response_answer() -> Answer:
    parser = ReadingPlan(OutputFormat(tools=None, reasoning=None), tools={}).make_parsers("hi", "1")(0)
    response = ResponseObject(id="resp_1", created_at=5, model="m", temperature=0.0, top_p=1.0)
    return ResponseAnswer(response, parser, ByteTokenizer(), num_top=None, tells_cached_tokens=True)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_PING_SECONDS", 0.01)


def events(answer: Answer, *script: str | Silence | Exception) -> list[dict[str, Any]]:
    """Return the events of a stream, whose frame around them must be right."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def run() -> None:
        tasks = asyncio.all_tasks()
        generation: Any = FakeGeneration(script, sent)
        response = answering.StreamResponse(lambda: generation, answer)
        await response({"type": "http", "state": {}, "http_version": "1.1"}, receive, send)  # type: ignore[arg-type]
        await asyncio.sleep(0.01)  # for what was cancelled to end
        assert asyncio.all_tasks() == tasks, "nothing goes on"

    asyncio.run(asyncio.wait_for(run(), 20))
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * (len(sent) - 1)
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
    frames = b"".join(message["body"] for message in sent[1:]).decode().split("\n\n")
    assert frames.pop() == ""
    return [json.loads(frame.split("data: ")[1]) for frame in frames]


def kinds(said: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in said]


@pytest.mark.usefixtures("often")
def test_a_message_that_pauses_is_pinged_again_and_again() -> None:
    said = kinds(events(make_messages_answer(), "a", Silence(4), "b"))
    assert said[:4] == ["message_start", "ping", "content_block_start", "content_block_delta"]
    pings, rest = said[4:-4], said[-4:]
    assert len(pings) >= 3
    assert set(pings) == {"ping"}
    assert rest == ["content_block_delta", "content_block_stop", "message_delta", "message_stop"]


@pytest.mark.usefixtures("often")
def test_a_message_that_waits_for_its_first_token_is_begun_and_pinged() -> None:
    said = events(make_messages_answer(), Silence(2), "a")
    assert kinds(said).count("message_start") == 1
    assert kinds(said)[:3] == ["message_start", "ping", "ping"]
    assert kinds(said)[-5:-3] == ["content_block_start", "content_block_delta"]
    assert said[-2]["usage"]["input_tokens"] == 10


@pytest.mark.usefixtures("often")
def test_a_message_that_fails_while_it_is_pinged_ends_with_the_error() -> None:
    said = kinds(events(make_messages_answer(), Silence(2), EngineDeadError("gone")))
    assert said[0] == "message_start"
    assert said[-1] == "error"
    assert set(said[1:-1]) == {"ping"}


def test_a_message_without_a_pause_is_pinged_once() -> None:
    assert kinds(events(make_messages_answer(), *"abcdef")).count("ping") == 1


def test_an_error_before_the_first_event_has_a_status_of_its_own() -> None:
    with pytest.raises(EngineDeadError):
        events(make_messages_answer(), EngineDeadError("gone"))


@pytest.mark.usefixtures("often")
def test_openais_streams_have_no_pings() -> None:
    response = events(make_response_answer(), "a", Silence(0), "b")
    assert "ping" not in kinds(response)
