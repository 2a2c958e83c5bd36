"""/v1/responses and /v1/messages over HTTP: statuses, errors in each API's words, keys, clients that leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_process import TINY_LLAMA, ServerProcess, serve, serve_fake

RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
LONG = "x" * 2000
LONG_SECONDS = 2000 * 0.002
"""What a prompt of so many characters takes the echo server at least."""


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    """Return a body that is served, but for `fields`."""
    if path == RESPONSES:
        return {"input": "hi", "max_output_tokens": 4, "temperature": 0, **fields}
    return {"messages": HI, "max_tokens": 4, "temperature": 0, **fields}


def post(server: ServerProcess, path: str, **fields: Any) -> httpx.Response:
    return server.client.post(path, json=body_of(path, **fields))


def text_of(path: str, document: dict[str, Any]) -> str:
    text: str = document["output"][0]["content"][0]["text"] if path == RESPONSES else document["content"][0]["text"]
    return text


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_both_say_what_a_chat_does(server: ServerProcess, path: str) -> None:
    chat = server.chat("hi", max_tokens=4).json()
    document = post(server, path).json()
    assert text_of(path, document) == chat["choices"][0]["message"]["content"]
    assert document["model"] == "tiny"
    assert document["usage"]["output_tokens"] == 4


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_stream_says_what_the_whole_answer_does(server: ServerProcess, path: str) -> None:
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    expected = text_of(path, post(server, path, **{limit: 40}).json())
    body = body_of(path, stream=True, **{limit: 40})
    with server.client.stream("POST", path, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        told = list(events(response))
    deltas = [event["delta"] for event in told if event["type"].endswith("delta") and event["type"] != "message_delta"]
    assert "".join(delta if isinstance(delta, str) else delta["text"] for delta in deltas) == expected
    assert told[-1]["type"] == ("response.incomplete" if path == RESPONSES else "message_stop")


def test_a_stop_sequence_is_told(echo_server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "one END two"}]
    message = post(echo_server, MESSAGES, messages=messages, max_tokens=50, stop_sequences=["END"]).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert message["content"] == [{"type": "text", "text": "one "}]


def test_a_response_ends_by_itself(echo_server: ServerProcess) -> None:
    response = post(echo_server, RESPONSES, input="all of it", max_output_tokens=50).json()
    assert response["status"] == "completed"
    assert response["incomplete_details"] is None
    assert text_of(RESPONSES, response) == "all of it"


def test_the_tokens_that_are_counted_are_those_that_are_read(server: ServerProcess) -> None:
    usage = post(server, MESSAGES, system="Be brief.").json()["usage"]
    counted = server.client.post(COUNT, json={"messages": HI, "system": "Be brief."}).json()
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_nothing_is_stored_and_the_answer_says_so(server: ServerProcess) -> None:
    response = post(server, RESPONSES, store=True, metadata={"a": "b"}, instructions="Be brief.").json()
    assert response["store"] is False
    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "Be brief.")
    assert server.client.get(f"{RESPONSES}/{response['id']}").status_code == 404


def test_the_logprobs_of_a_response_are_those_of_its_tokens(server: ServerProcess) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 3}
    (part,) = post(server, RESPONSES, **fields).json()["output"][0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]
    assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}
    with server.client.stream("POST", RESPONSES, json=body_of(RESPONSES, stream=True, **fields)) as response:
        told = list(events(response))
    assert told[-1]["response"]["output"][0]["content"] == [part]
    assert [entry for event in told for entry in event.get("logprobs", ()) if "delta" in event] == part["logprobs"]


def test_the_model_goes_on_in_the_message_it_was_given(server: ServerProcess) -> None:
    counts = [
        server.client.post(COUNT, json={"messages": [*HI, *more]}).json()["input_tokens"]
        for more in ([], [{"role": "assistant", "content": "I"}])
    ]
    assert counts[1] == counts[0] + 1


# ---------------------------------------------------------------- errors


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (RESPONSES, {"previous_response_id": "resp_1"}, "nothing is stored"),
    (RESPONSES, {"conversation": "conv_1"}, "nothing is stored"),
    (RESPONSES, {"background": True}, "background"),
    (RESPONSES, {"max_tokens": 5}, "here it is max_output_tokens"),
    (RESPONSES, {"response_format": {"type": "json_object"}}, "here it is text.format"),
    (RESPONSES, {"prompt": {"id": "p"}}, "stored prompts"),
    (RESPONSES, {"include": ["everything"]}, "include"),
    (RESPONSES, {"top_logprobs": 3}, "top_logprobs"),
    (RESPONSES, {"top_logprobs": 3000, "include": ["message.output_text.logprobs"]}, "logprobs"),
    (RESPONSES, {"truncation": "middle"}, "truncation"),
    (RESPONSES, {"reasoning": {"effort": "heroic"}}, "effort"),
    (RESPONSES, {"metadata": {str(index): "x" for index in range(17)}}, "metadata"),
    (RESPONSES, {"metadata": {"a": "x" * 513}}, "metadata"),
    (RESPONSES, {"metadata": {"a": 5}}, "metadata"),
    (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
    (RESPONSES, {"max_output_tokens": 10_000}, "max_output_tokens is 10000"),
    (RESPONSES, {"max_output_tokens": "5"}, "max_output_tokens"),
    (RESPONSES, {"temperature": "hot"}, "temperature"),
    (RESPONSES, {"temperature": 3}, "temperature"),
    (RESPONSES, {"input": 5}, "input"),
    (RESPONSES, {"input": None}, "input"),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": ["hi"]}, "input"),
    (RESPONSES, {"input": [{"type": "mcp_call"}]}, "mcp_call"),
    (RESPONSES, {"input": HI * 10_000}, "8192"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]}, "JSON"),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, "web_search"),
    (RESPONSES, {"tools": "f"}, "tools"),
    (RESPONSES, {"tool_choice": "maybe"}, '{"type": "function", "name": …}, got'),
    (RESPONSES, {"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name must be"),
    (
        RESPONSES,
        {"tools": [{"type": "function", "name": "f", "parameters": {"type": 5}}]},
        "tools[0].parameters must be",
    ),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "bogus"}}}},
        "text.format cannot be served",
    ),
    (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x"}}}, "schema"),
    (RESPONSES, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    (MESSAGES, {"max_tokens": None}, "max_tokens"),
    (MESSAGES, {"max_tokens": 0}, "max_tokens"),
    (MESSAGES, {"max_tokens": 10_000}, "max_tokens"),
    (MESSAGES, {"max_tokens": True}, "max_tokens"),
    (MESSAGES, {"messages": []}, "messages"),
    (MESSAGES, {"messages": "hi"}, "messages"),
    (MESSAGES, {"messages": [{"role": "user"}]}, "content"),
    (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "role"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
    (MESSAGES, {"messages": HI * 10_000}, "8192"),
    (MESSAGES, {"stop_sequences": ["a"] * 5}, "stop_sequences"),
    (MESSAGES, {"stop_sequences": [""]}, "stop"),
    (MESSAGES, {"stop_sequences": "END"}, "stop_sequences"),
    (MESSAGES, {"system": 5}, "system"),
    (MESSAGES, {"system": [{"type": "image"}]}, "system"),
    (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
    (MESSAGES, {"tools": [{"name": "f"}]}, "input_schema"),
    (MESSAGES, {"tool_choice": {"type": "some"}}, "tool_choice"),
    (MESSAGES, {"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    (MESSAGES, {"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name must be"),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": {"pattern": "("}}]}, "tools[0].input_schema has a pattern"),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": {}}]}, 'tool_choice "any" or "tool"'),
    (
        MESSAGES,
        {"messages": [*HI, {"role": "assistant", "content": " "}]},
        "messages that end with one by the assistant",
    ),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format needs a schema"),
    (
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "bogus"}}}},
        "output_config.format cannot be served",
    ),
    (MESSAGES, {"mcp_servers": [{}]}, "mcp_servers"),
    (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "output_config"),
    (MESSAGES, {"top_k": 1.5}, "top_k"),
    (MESSAGES, {"temperature": 3}, "temperature"),
]


@pytest.mark.parametrize(("path", "fields", "mentions"), REFUSED, ids=[f"{index}" for index in range(len(REFUSED))])
def test_what_cannot_be_served_is_said(server: ServerProcess, path: str, fields: Any, mentions: str) -> None:
    song = post(server, path).json()
    response = post(server, path, **fields)
    assert response.status_code == 400, response.text
    assert len(response.content) < 2000
    document = response.json()
    assert mentions in document["error"]["message"]
    if path == MESSAGES:
        assert (document["type"], document["error"]["type"]) == ("error", "invalid_request_error")
    else:
        assert set(document["error"]) == {"message", "type", "param", "code"}
    assert text_of(path, post(server, path).json()) == text_of(path, song)


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, COUNT])
@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"null", b"{", b'{"input": "\xff"}', b"[" * 100_000, b'{"a":' * 100 + b"1" + b"}" * 100],
    ids=["nothing", "a list", "null", "torn", "no text", "brackets", "deep"],
)
def test_bodies_that_are_no_bodies_are_refused(server: ServerProcess, path: str, raw: bytes) -> None:
    response = server.client.post(path, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert ("type" in response.json()) == (path != RESPONSES)


def test_a_tool_result_may_not_nest_without_end(server: ServerProcess) -> None:
    block: dict[str, Any] = {"type": "text", "text": "x"}
    for _ in range(25):
        block = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    response = post(server, MESSAGES, messages=[{"role": "user", "content": [block]}])
    assert response.status_code == 400
    assert "cannot stand here" in response.json()["error"]["message"]


def test_errors_of_messages_are_anthropics(server: ServerProcess) -> None:
    served = server.client.get("/v1/models").json()["data"][0]["id"]
    unknown = post(server, MESSAGES, model="claude")
    assert unknown.status_code == 404
    assert unknown.json() == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": f"The model `claude` does not exist; this server has `{served}` (see /v1/models).",
        },
    }
    assert server.client.get(MESSAGES).json()["error"]["type"] == "invalid_request_error"
    assert server.client.post(f"{MESSAGES}/batches", json={}).json()["error"]["type"] == "not_found_error"
    assert server.client.post("/v1/messagesx", json={}).json()["error"]["type"] == "NotFoundError"


def test_either_header_may_bring_the_key() -> None:
    with serve(TINY_LLAMA, "--api-key", "secret", "--api-key", "другой") as server:
        for headers in (
            {"x-api-key": b"secret"},
            {"authorization": b"Bearer secret"},
            {"x-api-key": "другой".encode()},
        ):
            assert server.client.post(COUNT, json={"messages": HI}, headers=headers).status_code == 200
        both = {"x-api-key": b"secret", "authorization": b"Bearer wrong"}
        assert server.client.post(COUNT, json={"messages": HI}, headers=both).status_code == 200
        for headers in ({}, {"x-api-key": b""}, {"x-api-key": b"secre"}, {"x-api-key": b"Bearer secret"}):
            response = server.client.post(COUNT, json={"messages": HI}, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
        assert server.client.post(RESPONSES, json={"input": "x"}).json()["error"]["code"] == 401


def test_anthropics_paths_send_the_requests_id_under_both_names(echo_server: ServerProcess) -> None:
    for path, has_both in ((MESSAGES, True), (COUNT, True), (RESPONSES, False)):
        headers = echo_server.client.post(path, json={"messages": HI, "input": "x"}).headers
        assert headers["x-request-id"]
        assert headers.get("request-id") == (headers["x-request-id"] if has_both else None)


# ---------------------------------------------------------------- clients that leave


def long_body(path: str, *, stream: bool) -> dict[str, Any]:
    if path == RESPONSES:
        return {"input": LONG, "max_output_tokens": 2000, "stream": stream}
    return {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2000, "stream": stream}


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_dropped_stream_ends_its_request(echo_server: ServerProcess, path: str) -> None:
    with (
        httpx.Client(timeout=60.0) as client,
        client.stream("POST", f"{echo_server.url}{path}", json=long_body(path, stream=True)) as response,
    ):
        for event in events(response):
            if event["type"].endswith("delta"):
                break
    echo_server.until(echo_server.is_idle, seconds=LONG_SECONDS / 2)


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_client_that_leaves_before_its_answer_ends_the_request(echo_server: ServerProcess, path: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{echo_server.url}{path}", json=long_body(path, stream=False), timeout=0.3)
    echo_server.until(echo_server.is_idle, seconds=LONG_SECONDS / 2)


# ---------------------------------------------------------------- requests that fail


def test_what_fails_later_is_told_in_each_apis_words() -> None:
    with serve_fake("--step-seconds", "0.01", "--request-timeout", "0.5") as server:
        for path in (RESPONSES, MESSAGES):
            reply = server.client.post(path, json=long_body(path, stream=False))
            assert reply.status_code == 504
            with server.client.stream("POST", path, json=long_body(path, stream=True)) as response:
                assert response.status_code == 200
                told = list(events(response))
            if path == RESPONSES:
                assert reply.json()["error"]["type"] == "TimeoutError"
                assert told[-1]["type"] == "response.failed"
                assert "0.5 seconds" in told[-1]["response"]["error"]["message"]
            else:
                assert reply.json()["error"]["type"] == "timeout_error"
                assert told[-1]["type"] == "error"
                assert "0.5 seconds" in told[-1]["error"]["message"]


def test_a_full_queue_is_an_overload() -> None:
    with serve_fake("--step-seconds", "0.01", "--max-num-seqs", "1", "--max-num-queued-reqs", "1") as server:
        with ThreadPoolExecutor(8) as threads:
            long = [{"role": "user", "content": "x" * 100}]
            replies = list(threads.map(lambda _: post(server, MESSAGES, messages=long, max_tokens=100), range(8)))
        refused = [reply for reply in replies if reply.status_code != 200]
        assert 0 < len(refused) < 8
        for reply in refused:
            assert (reply.status_code, reply.json()["error"]["type"]) == (503, "overloaded_error")
            assert "retry-after" in reply.headers
