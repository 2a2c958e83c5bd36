"""Clients that do not read what they asked for: memory stays bounded, and nobody else notices."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from server_process import TINY_LLAMA, ServerProcess, serve

MOST_BYTES = 64 << 20
"""What three clients may cost, while they do not read and after."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serve(TINY_LLAMA, "--served-model-name", "tiny", "--kv-cache-memory-bytes", "6000000") as process:
        yield process


@contextmanager
def unread(server: ServerProcess, path: str, body: dict[str, Any]) -> Iterator[None]:
    """Ask for a stream and read nothing of it; the system's buffers are as small as they get."""
    content = json.dumps({"ignore_eos": True, "stream": True, **body}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(head.encode() + content)
        yield


MANY = {"max_tokens": 400, "n": 64}
BODIES = {
    "completions": ("/v1/completions", {"prompt": "a", "logprobs": 20, **MANY}),
    "echo": ("/v1/completions", {"prompt": ["a", "b"], "logprobs": 20, "echo": True, "max_tokens": 400, "n": 32}),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20, **MANY},
    ),
}


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
def test_streams_that_are_not_read_take_bounded_memory(server: ServerProcess, path: str, body: dict[str, Any]) -> None:
    canary = server.complete("The canary sings", max_tokens=24).text.partition('"choices"')[2]
    for _ in range(2):  # what the first use of anything takes does not count
        assert server.client.post(path, json={**body, "max_tokens": 10, "n": 16}).status_code == 200
    before = server.memory_bytes()
    with ExitStack() as connections:
        for _ in range(3):
            connections.enter_context(unread(server, path, body))
        server.until(lambda: server.metric("vllm:num_requests_running") > 0)
        server.until(server.is_idle, seconds=120)
        assert server.memory_bytes() - before < MOST_BYTES
        assert server.complete("The canary sings", max_tokens=24).text.partition('"choices"')[2] == canary
    server.until(lambda: server.client.get("/load").json()["server_load"] == 0)
    assert server.memory_bytes() - before < MOST_BYTES
    assert server.client.get("/health").status_code == 200
