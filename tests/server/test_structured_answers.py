"""The form of an answer asked for over HTTP, in OpenAI's words and in vLLM's."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from server_process import ServerProcess, stream_texts

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}


def chat(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "a person"}], "max_tokens": 100, "seed": 1, **fields}
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORMAT},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    ],
    ids=["openai", "vllm", "vllm, as text"],
)
def test_an_answer_follows_its_schema(server: ServerProcess, fields: dict[str, Any]) -> None:
    choice = chat(server, **fields)
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_any_json_object_may_be_asked_for(server: ServerProcess) -> None:
    text = chat(server, response_format={"type": "json_object"}, max_tokens=20)["message"]["content"]
    assert text.lstrip().startswith("{")


def test_text_is_no_form(server: ServerProcess) -> None:
    assert chat(server, response_format={"type": "text"}) == chat(server)


def test_two_ways_to_ask_exclude_each_other(server: ServerProcess) -> None:
    body = {"prompt": "a", "response_format": FORMAT, "structured_outputs": {"regex": "a"}}
    response = server.client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"


def test_a_stream_says_what_the_whole_answer_does(server: ServerProcess) -> None:
    body = {"prompt": "a", "max_tokens": 60, "seed": 2, "structured_outputs": {"regex": r"\d{3}-\d{4}"}}
    whole = server.client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        assert "".join(stream_texts(response)) == whole
    assert re.fullmatch(r"\d{3}-\d{4}", whole)


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_becomes_too_complex_on_the_way_is_the_fault_of_its_request(
    server: ServerProcess, stream: bool
) -> None:
    grammar = {"grammar": 'start: (("a"{9999}){9999}){9999}'}
    body = {"prompt": "a", "max_tokens": 60, "structured_outputs": grammar, "stream": stream}
    response = server.client.post("/v1/completions", json=body)
    assert response.status_code == 400 or stream
    assert '"code":400' in response.text
    assert "grammar" in response.text
