"""Small calls that other servers have been seen to get wrong, over HTTP. Each names the case."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server_process import ServerProcess

EOS = 2
"""Of the tiny llama; 512 tokens of context, 2,048 logits."""


def stream(server: ServerProcess, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream; each of its lines is UTF-8 by itself."""
    with server.client.stream("POST", path, json={"temperature": 0, **body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        raw = b"".join(response.iter_raw())
    lines = [line.decode("utf-8", "strict") for line in raw.split(b"\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def choice(server: ServerProcess, prompt: Any, **fields: Any) -> dict[str, Any]:
    response = server.complete(prompt, **fields)
    assert response.status_code == 200, response.text
    (only,) = response.json()["choices"]
    assert isinstance(only, dict)
    return only


def test_no_part_of_a_stop_string_is_streamed(echo_server: ServerProcess) -> None:
    events = stream(echo_server, prompt="ABCDEFGHIJKL", stop=["DEFGHIJ"], max_tokens=50)
    texts = [event["choices"][0]["text"] for event in events]
    assert "".join(texts) == "ABC"
    assert not any("D" in text for text in texts)
    last = events[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "DEFGHIJ")


@pytest.mark.parametrize(
    ("prompt", "stop", "text", "reason"),
    [("xab", ["ab", "b"], "x", "ab"), ("xabc", ["abc", "b"], "xa", "b"), ("xab", ["b", "ab"], "xa", "b")],
    ids=["first_of_the_list", "first_to_end", "order"],
)
def test_of_several_stop_strings_the_first_to_end_wins_then_the_first_of_the_list(
    echo_server: ServerProcess, prompt: str, stop: list[str], text: str, reason: str
) -> None:
    made = choice(echo_server, prompt, stop=stop, max_tokens=50)
    assert (made["text"], made["stop_reason"]) == (text, reason)


@pytest.mark.parametrize("included", [True, False])
def test_a_stop_string_that_ends_within_a_token_is_cut_there(server: ServerProcess, included: bool) -> None:
    whole = choice(server, "The", max_tokens=12, ignore_eos=True, logprobs=0)
    token = max(whole["logprobs"]["tokens"], key=lambda text: len(text) if text.isascii() else 0)
    stop = token[1:-1]
    assert len(stop) > 1
    made = choice(server, "The", max_tokens=12, ignore_eos=True, stop=[stop], include_stop_str_in_output=included)
    end = whole["text"].index(stop)
    assert made["text"] == whole["text"][: end + len(stop) if included else end]


def test_empty_stream_options_bring_no_usage(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "hi"}]
    events = stream(server, "/v1/chat/completions", messages=messages, max_tokens=3, stream_options={})
    assert all("usage" not in event and event["choices"] for event in events)


def test_usage_of_a_stream_comes_once_after_all_choices_have_ended(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "hi"}]
    events = stream(
        server,
        "/v1/chat/completions",
        messages=messages,
        n=2,
        temperature=1,
        max_tokens=4,
        ignore_eos=True,
        stream_options={"include_usage": True},
    )
    reasons = [entry["finish_reason"] for event in events for entry in event["choices"] if entry["finish_reason"]]
    assert reasons == ["length", "length"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert all(event["usage"] is None for event in events[:-1])


def test_echoed_logprobs_are_numbers_that_json_has(server: ServerProcess) -> None:
    made = choice(server, "The quick", echo=True, logprobs=1, temperature=1, top_k=1, max_tokens=3)
    values = [value for value in made["logprobs"]["token_logprobs"] if value is not None]
    values += [value for entry in made["logprobs"]["top_logprobs"] if entry for value in entry.values()]
    assert values
    assert all(-9999.0 <= value <= 0.0 for value in values)


def test_no_logprobs_means_one_entry_and_none_means_null(server: ServerProcess) -> None:
    made = choice(server, "The", logprobs=0, max_tokens=3)
    assert [len(entry) for entry in made["logprobs"]["top_logprobs"]] == [1, 1, 1]
    assert choice(server, "The", max_tokens=3)["logprobs"] is None
    assert server.complete("The", logprobs=21).status_code == 400


def test_token_ids_are_answered_as_their_text_is(server: ServerProcess) -> None:
    tokens = server.client.post("/tokenize", json={"prompt": "The quick brown"}).json()["tokens"]
    by_ids = server.complete(tokens, max_tokens=5).json()
    by_text = server.complete("The quick brown", max_tokens=5).json()
    assert by_ids["choices"] == by_text["choices"]
    assert by_ids["usage"]["prompt_tokens"] == by_text["usage"]["prompt_tokens"] == len(tokens)


def test_equal_prompts_of_one_call_get_equal_texts(server: ServerProcess) -> None:
    choices = server.complete(["The quick"] * 2, max_tokens=5).json()["choices"]
    assert [entry["index"] for entry in choices] == [0, 1]
    assert choices[0]["text"] == choices[1]["text"]


def test_the_end_is_out_of_reach_for_the_first_tokens(server: ServerProcess) -> None:
    made = choice(
        server, "The", min_tokens=4, max_tokens=20, logit_bias={str(EOS): 100}, return_token_ids=True, logprobs=0
    )
    assert made["token_ids"].index(EOS) == 4
    assert (len(made["token_ids"]), made["finish_reason"]) == (5, "stop")


def test_an_end_that_is_ignored_ends_nothing(server: ServerProcess) -> None:
    made = choice(server, "The", ignore_eos=True, max_tokens=64, logit_bias={str(EOS): 100}, return_token_ids=True)
    assert made["token_ids"] == [EOS] * 64
    assert made["finish_reason"] == "length"


def test_penalties_count_what_they_should(server: ServerProcess) -> None:
    """On the first token only the repetition penalty sees something: the prompt."""
    plain = choice(server, "The", max_tokens=1, return_token_ids=True)
    first = plain["token_ids"][0]
    prompt = [*server.client.post("/tokenize", json={"prompt": "The"}).json()["tokens"]]
    ending_with_it = [first, *prompt]
    wanted = choice(server, ending_with_it, max_tokens=1, return_token_ids=True)["token_ids"]
    same = choice(server, ending_with_it, max_tokens=1, presence_penalty=2, frequency_penalty=2, return_token_ids=True)
    assert same["token_ids"] == wanted
    strict = choice(server, [*prompt, *wanted], max_tokens=1, repetition_penalty=1000, return_token_ids=True)
    assert strict["token_ids"][0] not in {*prompt, *wanted}


def test_a_length_that_does_not_fit_is_refused_with_its_numbers(server: ServerProcess) -> None:
    response = server.complete([5] * 500, max_tokens=13)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert all(number in message for number in ("512", "500", "13", "at most 12 are left"))
    assert server.complete([5] * 500, max_tokens=12).status_code == 200


def test_a_path_that_is_not_there_says_where_to_look(server: ServerProcess) -> None:
    missing = server.client.post("/v1/v1/chat/completions", json={})
    assert missing.status_code == 404
    assert "The base URL of OpenAI's clients ends in /v1" in missing.json()["error"]["message"]
    wrong = server.client.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (405, "Method Not Allowed: use POST.")


@pytest.mark.parametrize("prompt", ["", [""]], ids=["text", "list"])
def test_an_empty_prompt_is_refused(server: ServerProcess, prompt: Any) -> None:
    assert server.complete(prompt).status_code == 400
    assert server.complete("The", max_tokens=1).status_code == 200


def test_a_bias_outside_of_the_vocabulary_is_refused(server: ServerProcess) -> None:
    response = server.complete("The", logit_bias={"191222": -100})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logit_bias")
    assert server.complete("The", max_tokens=1).status_code == 200


def test_characters_of_several_tokens_are_streamed_whole(echo_server: ServerProcess) -> None:
    text = "🦙 ďábelské 你好 👩‍👩‍👧"
    whole = choice(echo_server, text, max_tokens=100)["text"]
    events = stream(echo_server, prompt=text, max_tokens=100)
    streamed = "".join(event["choices"][0]["text"] for event in events)
    assert whole == streamed == text
    assert "\ufffd" not in streamed
