"""Hostile inputs that need more than one body: too little memory, addresses to fetch, silent connections, salts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hostile_rows import CLASSES, LOOP, user
from server_process import TINY_LLAMA, ServerProcess, serve

CANARY = {"max_tokens": 24, "logprobs": 3}


def song_of(server: ServerProcess) -> str:
    choice = server.complete("The canary sings", **CANARY).json()["choices"][0]
    return f"{choice['text']!r} {choice['logprobs']['token_logprobs']}"


@pytest.fixture(autouse=True)
def unharmed(server: ServerProcess) -> Iterator[None]:
    song = song_of(server)
    yield
    assert song_of(server) == song
    assert server.client.get("/health").status_code == 200
    server.until(server.is_idle, seconds=10.0)


@pytest.fixture(scope="module")
def narrow() -> Iterator[ServerProcess]:
    """Has memory for 64 tokens, while the model takes 512."""
    with serve(TINY_LLAMA, "--num-gpu-blocks-override", "4", "--block-size", "16", "--max-model-len", "512") as process:
        yield process


@pytest.mark.parametrize("fields", [{"prompt": [5] * 65}, {"prompt": [5] * 300}, {"prompt": [5] * 60, "max_tokens": 9}])
def test_what_no_memory_can_hold_is_refused_at_once_and_never_waits(
    narrow: ServerProcess, fields: dict[str, Any]
) -> None:
    response = narrow.complete(**{"max_tokens": 2, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "BadRequestError"
    assert narrow.metric("vllm:num_requests_waiting") == 0
    assert narrow.complete([5] * 40, max_tokens=8).status_code == 200


PARTS = {
    "image": lambda url: {"type": "image_url", "image_url": {"url": url}},
    "image as text": lambda url: {"type": "image_url", "image_url": url},
    "video": lambda url: {"type": "video_url", "video_url": {"url": url}},
    "audio": lambda url: {"type": "audio_url", "audio_url": {"url": url}},
    "file": lambda url: {"type": "file", "file": {"file_data": url}},
}


@pytest.mark.parametrize("name", PARTS)
def test_no_address_is_ever_fetched(server: ServerProcess, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/a.png"
        for path, body in (("/v1/chat/completions", user([PARTS[name](url)])), ("/tokenize", user([PARTS[name](url)]))):
            assert server.client.post(path, json=body).status_code == 400
        listening.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listening.accept()


@pytest.mark.parametrize("fields", [{"max_tokens": None}, {"max_tokens": None, "min_tokens": 3}])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_length_of_null_may_fill_the_context_in_both_endpoints(
    server: ServerProcess, path: str, fields: dict[str, Any]
) -> None:
    body = {"prompt": [5] * 480} if path == "/v1/completions" else user("a " * 200)
    answer = server.client.post(path, json={"ignore_eos": True, "temperature": 0, **body, **fields}).json()
    assert answer["usage"]["total_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "fields", [{"min_tokens": 10**9}, {"min_tokens": 513, "max_tokens": None}, {"min_tokens": 9, "max_tokens": 8}]
)
def test_more_tokens_at_least_than_there_can_be_are_refused(
    server: ServerProcess, path: str, fields: dict[str, Any]
) -> None:
    body = {"prompt": "a"} if path == "/v1/completions" else user("a")
    assert server.client.post(path, json={**body, **fields}).status_code == 400


@pytest.mark.parametrize("salt", ["mine", "a" * 128, "A_1-"])
def test_a_prompt_of_another_salt_is_not_found_in_the_cache(server: ServerProcess, salt: str) -> None:
    def num_cached(**fields: Any) -> int:
        usage = server.complete([7, ord(salt[0])] * 100, max_tokens=1, **fields).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    num_cached(cache_salt=salt)
    assert num_cached(cache_salt=salt) > 0
    assert num_cached(cache_salt=salt[1:] + "x") == 0
    assert num_cached() == 0


@pytest.mark.slow
def test_idle_connections_are_closed_and_hold_up_nobody(server: ServerProcess) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(500)]
        for connection in idle:
            connection.sendall(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
        for _ in range(20):
            assert server.complete("a", max_tokens=2).status_code == 200
        for connection in idle:
            connection.settimeout(30)
            while connection.recv(4096):
                pass


@pytest.mark.parametrize(
    "template", [LOOP, CLASSES, "{% generation %}{{ messages[0].nothing.nothing }}{% endgeneration %}"]
)
def test_a_hostile_template_of_the_model_itself_costs_only_chats(template: str) -> None:
    with serve(TINY_LLAMA, "--chat-template", template, "--chat-template-timeout", "1") as server:
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        for _ in range(2):
            answer = server.client.post("/v1/chat/completions", json=chat)
            assert answer.status_code == 400, answer.text
            assert "/" not in answer.json()["error"]["message"], "no path is told"
        plain = server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert plain.status_code == 200
        assert server.client.get("/health").status_code == 200
        server.until(server.is_idle)
