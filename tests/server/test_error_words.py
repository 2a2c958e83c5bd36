"""Errors about bodies name what the client has sent, in the words of its API: without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from face_fakes import ByteTokenizer

from octavo.errors import RequestError
from octavo.frontend.input_processor import EngineInput
from octavo.sampling_params import SamplingParams
from octavo.server.protocol.calls import Call, ProtocolContext, parse_chat, parse_completion
from octavo.server.protocol.errors import ApiError
from octavo.server.protocol.limits import RequestLimits


def parse(kind: str, *model_names: str, **body: Any) -> Call:
    context = ProtocolContext(model_names or ("m",), SamplingParams(), RequestLimits(), ByteTokenizer())
    parser = parse_chat if kind == "chat" else parse_completion
    start = {"messages": [{"role": "user", "content": "hi"}]} if kind == "chat" else {"prompt": "hi"}
    return parser(json.dumps({**start, **body}).encode(), context)


def make_input(num_tokens: int) -> EngineInput:
    return EngineInput(None, [5] * num_tokens, SamplingParams())


def test_a_form_that_cannot_be_served_is_told_in_the_words_of_the_body() -> None:
    fault = RequestError("structured_outputs.json cannot be served: why.", parameter="structured_outputs")
    forms: dict[str, dict[str, Any]] = {
        "response_format": {"type": "json_object"},
        "structured_outputs": {"regex": "a"},
    }
    for name, form in forms.items():
        place = f"{name}.json_schema" if name == "response_format" else f"{name}.json"
        with pytest.raises(RequestError, match=rf"^prompt 1: {place} cannot be served: why\.$") as refusal:
            parse("completion", **{name: form}).checked_inputs([make_input(1), fault], 100)
        assert refusal.value.parameter == name


@pytest.mark.parametrize(
    ("kind", "body", "named"),
    [
        ("chat", {"max_completion_tokens": -1}, "max_completion_tokens"),
        ("chat", {"max_tokens": -1}, "max_tokens"),
        ("chat", {"max_completion_tokens": 4, "min_tokens": 5}, "max_completion_tokens"),
        ("chat", {"logprobs": True, "top_logprobs": -5}, "top_logprobs"),
        ("completion", {"logprobs": -5}, "logprobs"),
    ],
    ids=["length", "older name", "least length", "logprobs of a chat", "logprobs"],
)
def test_errors_name_what_the_client_has_sent(kind: str, body: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=rf"(^|\s){named}\b"):
        parse(kind, **body)


@pytest.mark.parametrize(
    ("body", "error", "told"),
    [
        ({"max_completion_tokens": 400}, None, "max_completion_tokens is 400 "),
        ({"logprobs": True, "top_logprobs": 30}, ("logprobs", "logprobs is 30"), "top_logprobs is 30"),
        (
            {"response_format": {"type": "json_object"}},
            ("structured_outputs", "structured_outputs.json cannot be served"),
            "response_format.json_schema cannot be served",
        ),
    ],
    ids=["length", "logprobs", "form"],
)
def test_errors_of_the_engine_name_what_the_client_has_sent(
    body: dict[str, Any], error: tuple[str, str] | None, told: str
) -> None:
    entry = make_input(10) if error is None else RequestError(error[1], parameter=error[0])
    with pytest.raises(RequestError) as refused:
        parse("chat", **body).checked_inputs([entry], 100)
    assert str(refused.value).startswith(told)
    assert refused.value.parameter == told.split()[0].partition(".")[0]


def test_a_served_name_that_is_a_path_is_told_as_it_is() -> None:
    with pytest.raises(ApiError) as error:
        parse("completion", "/data/models/tiny.gguf", model="gpt")
    assert "this server has `/data/models/tiny.gguf` (see /v1/models)" in error.value.text


@pytest.mark.parametrize(
    ("num_tokens", "said"), [(1, r"the prompt has 1 token, .*at most 99 are left"), (99, r"at most 1 is left")]
)
def test_one_token_is_not_some_tokens(num_tokens: int, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        parse("chat", max_tokens=200).checked_inputs([make_input(num_tokens)], 100)
