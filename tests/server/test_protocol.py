"""Bodies to prompts and parameters, outputs to answers: without a server, on an engine without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from face_fakes import ByteTokenizer, echo_prompt, make_engine, make_llm
from tiny_models import TINY_DIR

from octavo.errors import EngineDeadError, QueueFullError, RequestError, RequestTimeoutError
from octavo.frontend.input_processor import EngineInput
from octavo.llm import LLM
from octavo.outputs import Logprob, finite_logprob
from octavo.sampling_params import RequestOutputKind, SamplingParams
from octavo.server.app import make_state
from octavo.server.options import ServerOptions
from octavo.server.protocol.answers import error_frames
from octavo.server.protocol.calls import Call, ProtocolContext, parse_chat, parse_completion, parse_tokenize
from octavo.server.protocol.errors import ApiError, api_error
from octavo.server.protocol.limits import RequestLimits
from octavo.server.protocol.logprobs import chat_logprobs, completion_logprobs
from octavo.server.protocol.prompts import rendering_arguments
from octavo.server.responses_api.calls import parse_response
from octavo.tokenizer.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
EOS_CHAIN = "\N{FAMILY}é"


def make_context(**fields: Any) -> ProtocolContext:
    values: dict[str, Any] = {
        "model_names": ("m", "alias"),
        "default_sampling_params": SamplingParams(temperature=0.6, top_p=0.9),
        "limits": RequestLimits(),
        "texts": ByteTokenizer(),
    }
    return ProtocolContext(**{**values, **fields})


def parse(kind: str, context: ProtocolContext | None = None, **body: Any) -> Call:
    parser = parse_chat if kind == "chat" else parse_completion
    body = {"messages": MESSAGES, **body} if kind == "chat" else {"prompt": "hi", **body}
    return parser(json.dumps(body).encode(), context or make_context())


def make_input(num_tokens: int) -> EngineInput:
    return EngineInput(None, [5] * num_tokens, SamplingParams())


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm, _ = make_llm(next_token=echo_prompt)
    yield llm
    llm.close()


def answer(llm: LLM, kind: str, context: ProtocolContext | None = None, **body: Any) -> dict[str, Any]:
    call, prompts = prepared(kind, context, body)
    outputs = list(llm.stream(prompts, call.params))
    document: dict[str, Any] = json.loads(call.answer("1", 5).body(outputs))
    return document


def stream(llm: LLM, kind: str, context: ProtocolContext | None = None, **body: Any) -> list[dict[str, Any]]:
    call, prompts = prepared(kind, context, {**body, "stream": True})
    writer = call.answer("1", 5)
    data = b"".join(writer.chunk(int(output.request_id), output) for output in llm.stream(prompts, call.params))
    events = (data + writer.end()).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def prepared(kind: str, context: ProtocolContext | None, body: dict[str, Any]) -> tuple[Call, list[Any]]:
    call = parse(kind, context, **{"temperature": 0, "max_tokens": 50, **body})
    if call.conversation is None:
        return call, call.prompts
    call = call.with_rendered(ByteTokenizer().apply_chat_template(**call.conversation))
    return call, call.prompts


# ---------------------------------------------------------------- parameters


def test_what_a_body_leaves_open_comes_from_the_models_defaults() -> None:
    params = parse("completion", top_p=0.5).params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.6, 0.5, 16)


def test_a_chat_may_fill_the_context() -> None:
    assert parse("chat").params.max_tokens is None
    assert parse("chat", max_tokens=5).params.max_tokens == 5
    assert parse("chat", max_tokens=5, max_completion_tokens=7).params.max_tokens == 7
    context = make_context(default_sampling_params=SamplingParams(max_tokens=99))
    assert parse("chat", context).params.max_tokens == 99


def test_null_is_no_limit_for_a_completion() -> None:
    call = parse("completion", max_tokens=None)
    assert (call.params.max_tokens, call.asked_max_tokens) == (None, None)
    assert parse("completion").asked_max_tokens is None
    assert parse("completion", max_tokens=16).asked_max_tokens == 16


def test_a_length_that_does_not_fit_is_refused_with_all_numbers() -> None:
    call = parse("completion", max_tokens=50)
    call.checked_inputs([make_input(50)], 100)
    with pytest.raises(RequestError, match=r"50 and the prompt has 51 tokens.* length is 100"):
        call.checked_inputs([make_input(50), make_input(51)], 100)


def test_streams_ask_for_deltas_and_others_for_the_end() -> None:
    assert parse("chat", stream=True).params.output_kind is RequestOutputKind.DELTA
    assert parse("chat").params.output_kind is RequestOutputKind.FINAL_ONLY


def test_every_extra_reaches_the_parameters() -> None:
    extras = {
        "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "seed": 7, "stop": ["a"], "stop_token_ids": [4], "include_stop_str_in_output": True, "ignore_eos": True,
        "min_tokens": 2, "skip_special_tokens": False, "allowed_token_ids": [1, 4], "bad_words": ["b"], "n": 2,
        "prompt_logprobs": 1,
    }  # fmt: skip
    params = parse("completion", **extras, logit_bias={"5": 300}).params
    assert {name: getattr(params, name) for name in extras} == extras
    assert params.logit_bias == {5: 100.0}


def test_a_low_temperature_is_raised_without_a_warning() -> None:
    assert parse("completion", temperature=0.005).params.temperature == 0.01
    assert parse("completion", temperature=1e-320).params.greedy


def test_priority_salt_and_id_are_read() -> None:
    call = parse("completion", prompt=["a", [1, 2]][:1], priority=-3, cache_salt="s", request_id="r")
    assert (call.priority, call.request_id, call.prompts) == (-3, "r", [{"prompt": "a", "cache_salt": "s"}])
    assert parse("completion", prompt=[1, 2], cache_salt="s").prompts == [
        {"prompt_token_ids": [1, 2], "cache_salt": "s"}
    ]


@pytest.mark.parametrize("n", [1, 3])
def test_best_of_as_many_as_are_wanted_is_no_request(n: int) -> None:
    assert parse("completion", n=n, best_of=n).params.n == n


@pytest.mark.parametrize(
    "field",
    [{"response_format": {"type": "text"}}, {"tools": []}, {"tool_choice": "none"}, {"modalities": ["text"]},
     {"use_beam_search": False}, {"suffix": ""}, {"guided_json": None}, {"user": "u"}, {"made_up": [{}]}],
    ids=lambda field: next(iter(field)),
)  # fmt: skip
def test_fields_that_ask_for_nothing_are_let_pass(field: dict[str, Any]) -> None:
    assert parse("completion", **field).params.n == 1


@pytest.mark.parametrize(
    ("kind", "body", "parameter"),
    [
        ("completion", {"tools": [{}]}, "tools"),
        ("completion", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ("completion", {"n": True}, "n"),
        ("completion", {"n": "2"}, "n"),
        ("completion", {"n": 16_385}, "n"),
        ("completion", {"prompt": ["a"] * 5, "n": 4_000}, "n"),
        ("completion", {"temperature": float("nan")}, "temperature"),
        ("completion", {"top_p": float("inf")}, "top_p"),
        ("completion", {"seed": 2**63}, "seed"),
        ("completion", {"seed": -(2**63) - 1}, "seed"),
        ("completion", {"seed": 1.5}, "seed"),
        ("completion", {"stop": ["a"] * 5}, "stop"),
        ("completion", {"stop": "x" * 70_000}, "stop"),
        ("completion", {"logit_bias": {"x": 1}}, "logit_bias"),
        ("completion", {"logit_bias": {str(index): 1 for index in range(5_000)}}, "logit_bias"),
        ("completion", {"stop_token_ids": [1] * 5_000}, "stop_token_ids"),
        ("completion", {"bad_words": ["a"] * 300}, "bad_words"),
        ("completion", {"prompt": []}, "prompt"),
        ("completion", {"prompt": [1, "a"]}, "prompt"),
        ("completion", {"prompt": [True]}, "prompt"),
        ("completion", {"prompt": ["a"] * 1_025}, "prompt"),
        ("completion", {"prompt": "\ud800"}, "prompt"),
        ("completion", {"max_tokens": 0}, "max_tokens"),
        ("completion", {"stream_options": {}}, "stream_options"),
        ("completion", {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
        ("completion", {"request_id": "x" * 300}, "request_id"),
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": None}, "messages"),
        ("chat", {"messages": [{"role": "x", "content": ""}]}, "messages"),
        ("chat", {"messages": MESSAGES * 10_000}, "messages"),
        ("chat", {"top_logprobs": 3}, "top_logprobs"),
        ("chat", {"logprobs": 3}, "logprobs"),
        ("chat", {"chat_template": "{{ 1 }}"}, "chat_template"),
        ("chat", {"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ("chat", {"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value)[:20],
)  # fmt: skip
def test_a_bad_field_is_named(kind: str, body: dict[str, Any], parameter: str) -> None:
    with pytest.raises(RequestError) as error:
        parse(kind, **body)
    assert error.value.parameter == parameter
    assert len(api_error(error.value).text) < 1_100


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"5", b'"a"', b"null", b'{"prompt": "a"} x', b"\xff", b'{"a": NaN'])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError, match=r"body|prompt"):
        parse_completion(raw, make_context())


@pytest.mark.parametrize(
    "start", [b'{"prompt": "a", "made_up": ', b'{"prompt": "\\ud800", "made_up": '], ids=["plain", "half"]
)
@pytest.mark.parametrize("depth", [900, 100_000])
def test_deep_nesting_is_refused(start: bytes, depth: int) -> None:
    with pytest.raises(RequestError, match=r"nested too deeply|not valid"):
        parse_completion(start + b"[" * depth + b"]" * depth + b"}}", make_context())


def test_a_model_is_known_by_each_of_its_names() -> None:
    assert parse("completion", model="alias").params.n == 1
    assert make_context().served_name("alias") == "m"
    with pytest.raises(ApiError, match="does not exist; this server has `") as error:
        parse("completion", model="a" * 1_000_000)
    assert error.value.status == 404
    assert len(error.value.body()) < 400


@pytest.mark.parametrize("kind", ["chat", "tokenize", "response"])
def test_developers_speak_as_the_system_in_every_api(kind: str) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "developer", "content": "Be brief."}]
    raw = json.dumps({"messages" if kind != "response" else "input": messages}).encode()
    parser = {"chat": parse_chat, "tokenize": parse_tokenize, "response": parse_response}[kind]
    conversation = parser(raw, make_context()).conversation
    assert conversation is not None
    assert [message["role"] for message in conversation["conversation"]] == ["user", "system"]


def test_a_model_without_a_chat_template_is_told_of_in_the_words_of_the_server() -> None:
    tokenizer = Tokenizer.from_path(TINY_DIR / "llama")
    tokenizer.chat_templates = {}
    conversation = parse("chat").conversation
    assert conversation is not None
    with pytest.raises(RequestError, match=r"/v1/completions.*--chat-template") as error:
        rendering_arguments(tokenizer, conversation)
    assert error.value.parameter == "messages"


def test_a_template_of_the_server_s_is_for_requests_with_tools_too() -> None:
    engine, _ = make_engine()
    engine.tokenizer.chat_templates = {"default": "plain", "tool_use": "with tools"}
    make_state(SimpleNamespace(engine=engine), ServerOptions(chat_template="{{ own }}"), RequestLimits(), "m")  # type: ignore[arg-type]
    engine.close()
    assert engine.tokenizer.chat_templates == {"default": "{{ own }}"}


def test_tokenize_takes_a_prompt_or_a_conversation() -> None:
    plain = parse_tokenize(b'{"prompt": "a"}', make_context())
    assert (plain.text, plain.conversation, plain.add_special_tokens) == ("a", None, True)
    chat = parse_tokenize(json.dumps({"messages": MESSAGES}).encode(), make_context())
    assert chat.conversation is not None
    assert not chat.add_special_tokens
    for body in (b"{}", b'{"prompt": "a", "messages": [{"role": "user", "content": ""}]}'):
        with pytest.raises(RequestError, match="either prompt or messages"):
            parse_tokenize(body, make_context())


# ---------------------------------------------------------------- answers


def test_a_completion_is_told_with_its_usage(llm: LLM) -> None:
    body = answer(llm, "completion", make_context(fingerprint="f"), prompt="hello")
    assert (body["id"], body["object"], body["created"], body["model"]) == ("cmpl-1", "text_completion", 5, "m")
    (choice,) = body["choices"]
    assert choice == {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert body["usage"].items() >= {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}.items()
    assert body["system_fingerprint"] == "f"


def test_choices_of_several_prompts_are_numbered_through(llm: LLM) -> None:
    body = answer(llm, "completion", prompt=["ab", "cd"], n=2, temperature=1)
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "ab"), (1, "ab"), (2, "cd"), (3, "cd"),
    ]  # fmt: skip
    assert body["usage"]["prompt_tokens"] == 4


def test_cached_tokens_are_told_unless_they_should_not(llm: LLM) -> None:
    prompt = "a prompt of more than one block, sent twice"
    answer(llm, "completion", prompt=prompt)
    assert answer(llm, "completion", prompt=prompt)["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}
    silent = make_context(tells_cached_tokens=False)
    assert "prompt_tokens_details" not in answer(llm, "completion", silent, prompt=prompt)["usage"]


def test_echo_puts_the_prompt_and_its_logprobs_first(llm: LLM) -> None:
    (choice,) = answer(llm, "completion", prompt="ab", echo=True, logprobs=1)["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "abab"
    assert logprobs["tokens"] == ["a", "b", "a", "b", "<|end|>"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(len(entry) == 2 for entry in logprobs["top_logprobs"][1:])


def test_echo_without_a_length_scores_the_prompt_alone(llm: LLM) -> None:
    body = answer(llm, "completion", prompt="ab", echo=True, logprobs=1, max_tokens=0)
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["logprobs"]["tokens"] == ["a", "b"]
    assert body["usage"]["completion_tokens"] == 0


def test_echo_of_token_ids_is_their_text(llm: LLM) -> None:
    assert answer(llm, "completion", prompt=[104, 105], echo=True)["choices"][0]["text"] == "hihi"


def test_no_logprobs_beside_the_chosen_ones(llm: LLM) -> None:
    (choice,) = answer(llm, "completion", prompt="ab", logprobs=0)["choices"]
    assert all(len(entry) == 1 for entry in choice["logprobs"]["top_logprobs"])
    assert answer(llm, "completion", prompt="ab")["choices"][0]["logprobs"] is None


def test_tokens_can_be_told_as_ids(llm: LLM) -> None:
    (choice,) = answer(llm, "completion", prompt="a", logprobs=0, return_tokens_as_token_ids=True)["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:97", "token_id:256"]


def test_ids_and_logprobs_of_the_prompt_are_told_if_asked_for(llm: LLM) -> None:
    (choice,) = answer(llm, "completion", prompt="ab", return_token_ids=True, prompt_logprobs=1)["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98], [97, 98, 256])
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1]["98"] == {"logprob": -0.5, "rank": 3, "decoded_token": "b"}
    body = answer(llm, "chat", return_token_ids=True, prompt_logprobs=0)
    assert len(body["prompt_token_ids"]) == len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


def test_a_stop_string_is_named(llm: LLM) -> None:
    (choice,) = answer(llm, "completion", prompt="abcd", stop=["c"])["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", "c")


def test_a_chat_is_told_as_a_message(llm: LLM) -> None:
    body = answer(llm, "chat")
    (choice,) = body["choices"]
    assert (body["id"], body["object"]) == ("chatcmpl-1", "chat.completion")
    assert choice["message"] == {"role": "assistant", "content": "user: hi\nassistant: ", "refusal": None}


def test_echo_in_a_chat_puts_the_message_that_goes_on_first(llm: LLM) -> None:
    last = {"role": "assistant", "content": "well, "}
    body = answer(llm, "chat", messages=[*MESSAGES, last], echo=True, continue_final_message=True)
    assert body["choices"][0]["message"]["content"].startswith("well, user: hi")


def test_a_stream_says_what_the_whole_answer_does(llm: LLM) -> None:
    whole = answer(llm, "completion", prompt=EOS_CHAIN, logprobs=2, echo=True)["choices"][0]
    events = stream(llm, "completion", prompt=EOS_CHAIN, logprobs=2, echo=True)
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [value for choice in choices for value in choice["logprobs"][name]] == values
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert all("usage" not in event for event in events)


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_of_tokens_whose_text_is_held_back_are_those_of_the_whole_answer(llm: LLM, echo: bool) -> None:
    body: dict[str, Any] = {"prompt": "abcdef", "stop": ["bcx", "efg"], "logprobs": 0, "echo": echo}
    (whole,) = answer(llm, "completion", **body)["choices"]
    events = stream(llm, "completion", **body)
    streamed = [offset for event in events for offset in event["choices"][0]["logprobs"]["text_offset"]]
    assert streamed == whole["logprobs"]["text_offset"] == list(range(len(streamed)))


def test_text_that_is_held_back_makes_no_event(llm: LLM) -> None:
    texts = [event["choices"][0]["text"] for event in stream(llm, "completion", prompt="\N{FAMILY}x")]
    assert texts == ["\N{FAMILY}", "x", ""]


def test_a_chat_stream_begins_with_the_role(llm: LLM) -> None:
    events = stream(llm, "chat", n=2, temperature=1)
    first: dict[int, Any] = {}
    texts = {0: "", 1: ""}
    for event in events:
        (choice,) = event["choices"]
        first.setdefault(choice["index"], choice["delta"])
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert list(first.values()) == [{"role": "assistant", "content": ""}] * 2
    assert set(texts.values()) == {"user: hi\nassistant: "}


def test_usage_comes_last_and_counts_all_completions(llm: LLM) -> None:
    events = stream(llm, "completion", prompt="ab", n=2, temperature=1, stream_options={"include_usage": True})
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"].items() >= {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}.items()


@pytest.mark.parametrize("options", [{}, None, {"include_usage": False, "continuous_usage_stats": True}], ids=str)
def test_no_usage_that_nobody_asked_for(llm: LLM, options: dict[str, Any] | None) -> None:
    assert all("usage" not in event for event in stream(llm, "chat", stream_options=options))


def test_usage_can_be_told_all_the_time_or_always(llm: LLM) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [event["usage"]["completion_tokens"] for event in stream(llm, "completion", stream_options=options)]
    assert counts == [1, 2, 3, 3]
    assert stream(llm, "completion", make_context(forces_usage=True))[-1]["usage"]["completion_tokens"] == 3


# ---------------------------------------------------------------- logprobs and errors


def test_logprobs_are_finite() -> None:
    assert [finite_logprob(value) for value in (-1.0, float("-inf"), float("nan"))] == [-1.0, -9999.0, -9999.0]


def test_the_top_ones_of_a_chat_are_the_most_probable_ones_in_order() -> None:
    entries = {97: Logprob(-3.0, 9, "a"), 98: Logprob(-0.1, 1, "b"), 99: Logprob(-0.2, 2, "c")}
    (token,) = chat_logprobs([97], [entries], ByteTokenizer(), num_top=2, as_ids=False).content
    assert (token.token, [top.token for top in token.top_logprobs]) == ("a", ["b", "c"])


def test_two_tokens_of_the_same_text_leave_the_chosen_one() -> None:
    entries = {195: Logprob(-2.0, 2, "\ufffd"), 196: Logprob(-1.0, 1, "\ufffd")}
    logprobs = completion_logprobs([195], [entries], ByteTokenizer(), offset=0, as_ids=False)
    assert logprobs.top_logprobs == [{"\ufffd": -2.0}]


@pytest.mark.parametrize(
    ("error", "status"),
    [(RequestError("x", parameter="n"), 400), (EngineDeadError("/etc/x"), 503), (QueueFullError("full"), 503),
     (RequestTimeoutError("slow"), 504), (ZeroDivisionError("secret"), 500), (ApiError(413, "big"), 413)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_each_error_has_its_status(error: Exception, status: int) -> None:
    reply = api_error(error)
    document = json.loads(reply.body())["error"]
    assert (reply.status, document["code"]) == (status, status)
    assert not any(secret in document["message"] for secret in ("secret", "/etc"))


def test_messages_hide_addresses_and_paths_but_not_routes() -> None:
    text = ApiError(400, r"<f at 0x7f00aa11> in /home/me/x.py or C:\a\b\c: see /v1/models").text
    assert text == "<f at …> in … or …: see /v1/models"


def test_a_stream_that_has_failed_ends_with_the_reason() -> None:
    data, done, _ = error_frames(ApiError(500, "broken")).decode().split("\n\n")
    assert json.loads(data.removeprefix("data: "))["error"]["message"] == "broken"
    assert done == "data: [DONE]"
