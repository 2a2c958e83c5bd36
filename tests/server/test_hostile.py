from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hostile_rows import CHAT, COMPLETIONS, ROWS, Row
from server_process import TINY_LLAMA, ServerProcess, serve

MAX_GROWTH_BYTES = 64 << 20
_CANARY = {"prompt": "The canary sings", "max_tokens": 24, "temperature": 0, "logprobs": 3}
_LEAK = re.compile(r"Traceback|\w\.py\b|/usr/|/home/|site-packages|0x[0-9a-f]{6,}")


def canary(server: ServerProcess) -> str:
    choice = server.client.post(COMPLETIONS, json=_CANARY).json()["choices"][0]
    return f"{choice['text']!r} {choice['logprobs']['token_logprobs']}"


@pytest.fixture(scope="module")
def song(server: ServerProcess) -> str:
    return canary(server)


@pytest.fixture(autouse=True)
def unharmed(server: ServerProcess, song: str) -> Iterator[None]:
    """After each test the server must be as before."""
    before = server.memory_bytes()
    yield
    assert canary(server) == song
    assert server.client.get("/health").status_code == 200
    server.until(server.is_idle, seconds=2.0)
    assert server.memory_bytes() - before < MAX_GROWTH_BYTES


def post(server: ServerProcess, path: str, body: Any) -> httpx.Response:
    if isinstance(body, bytes):
        return server.client.post(path, content=body, headers={"content-type": "application/json"})
    good: dict[str, Any] = {"max_tokens": 2} if path in (COMPLETIONS, CHAT) else {}
    return server.client.post(path, json={**({"prompt": "a"} if path == COMPLETIONS else {}), **good, **body})


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_bodies_get_the_status_they_deserve(server: ServerProcess, row: Row) -> None:
    assert len(row.bodies) >= 3
    for body in row.bodies:
        response = post(server, row.path, body)
        shown = repr(body)[:200]
        assert response.status_code in row.statuses, f"{shown}: {response.status_code} {response.text[:500]}"
        assert not _LEAK.search(response.text), response.text[:500]
        assert len(response.content) < 4000
        if response.status_code != 200:
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert row.mentions in error["message"], error


def test_values_at_the_border_are_served(server: ServerProcess) -> None:
    for fields in (
        {"prompt": [5] * 511, "max_tokens": 1},
        {"prompt": [5] * 510, "max_tokens": 2},
        {"temperature": 1e-320},
        {"seed": -1},
        {"seed": 0},
        {"seed": 2**63 - 1},
        {"top_k": 2**31 - 1},
        {"logprobs": 0},
        {"logprobs": 20},
        {"stop": list("abcd")},
        {"cache_salt": "a" * 128},
        {"prompt": ["a"] * 1024, "max_tokens": 1},
    ):
        response = post(server, COMPLETIONS, fields)
        assert response.status_code == 200, (repr(fields)[:200], response.text[:300])


def test_repeated_keys_and_zero_characters_have_an_outcome(server: ServerProcess) -> None:
    for body in (b'{"prompt":"a","prompt":"b","max_tokens":1}', rb'{"prompt":"a\u0000b","max_tokens":1}'):
        assert post(server, COMPLETIONS, body).status_code == 200


def test_only_json_is_read(server: ServerProcess) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
        response = server.client.post(COMPLETIONS, content=b'{"prompt":"a"}', headers={"content-type": kind})
        assert response.status_code == 400
        assert "Only 'application/json' is allowed" in response.text
    good = {"content-type": "Application/JSON; charset=utf-8"}
    assert server.client.post(COMPLETIONS, content=b'{"prompt":"a"}', headers=good).status_code == 200


def exchange(server: ServerProcess, *parts: bytes, seconds: float = 10.0) -> bytes:
    """Send bytes and return what comes until the server closes, or until the end of the first answer."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                received += data
        except (ConnectionError, TimeoutError):
            pass
    return received


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def test_a_body_that_ends_early_closes_the_connection(server: ServerProcess) -> None:
    for length, sent in ((100, b'{"prompt":"a"'), (2, b"{"), (10**6, b'{"prompt":"' + b"a" * 1000)):
        answer = exchange(server, HEAD + b"Content-Length: %d\r\n\r\n" % length + sent)
        assert answer == b"" or answer.split(b" ", 2)[1] == b"400"


def test_a_client_that_leaves_within_its_body_is_no_fault_of_the_server(server: ServerProcess) -> None:
    def num_faults() -> int:
        return server.log().count("Traceback") + server.client.get("/metrics").text.count('status="5xx"')

    before, num_left = num_faults(), server.log().count("POST /tokenize 400")
    rests = (b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"Content-Length: 9\r\n\r\n")
    for rest in rests:
        exchange(server, HEAD.replace(b"/v1/completions", b"/tokenize") + rest)
    server.until(lambda: server.log().count("POST /tokenize 400") == num_left + 3)
    assert num_faults() == before


def test_huge_bodies_are_refused_unread(server: ServerProcess) -> None:
    before = server.memory_bytes()
    announced = exchange(server, HEAD + b"Content-Length: 268435456\r\n\r\n", *[b" " * 65536] * 64)
    assert announced == b"" or b" 413 " in announced[:20]
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    chunked = exchange(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 400)
    assert chunked == b"" or b" 413 " in chunked[:20]
    assert server.memory_bytes() - before < MAX_GROWTH_BYTES
    assert post(server, COMPLETIONS, b'{"prompt":"' + b"a" * (17 << 20) + b'"}').status_code == 413


def test_too_many_or_too_large_headers_are_refused(server: ServerProcess) -> None:
    for headers in (
        b"X: y\r\n" * 200,
        b"X-%d: y\r\n" * 10_000 % tuple(range(10_000)),
        b"X: " + b"y" * (8 << 20) + b"\r\n",
    ):
        answer = exchange(server, b"GET /health HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
        assert answer == b"" or answer.split(b" ", 2)[1] in (b"400", b"431")


def test_what_is_not_http_gets_400_and_is_closed(server: ServerProcess) -> None:
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET\r\n\r\n",
        b"GET /nowhere HTTP/9.9\r\n\r\n",
        b"\r\n" * 10 + b"\0\0\0\r\n\r\n",
    ):
        answer = exchange(server, sent)
        assert answer == b"" or answer.split(b" ", 2)[1] in (b"400", b"404")


def test_unknown_methods_paths_and_models_add_no_series(server: ServerProcess) -> None:
    def num_series() -> int:
        return len(server.client.get("/metrics").text.splitlines())

    server.client.request("FOO", "/a")
    post(server, COMPLETIONS, {"model": "b"})
    before = num_series()
    for index in range(50):
        server.client.request(f"FOO{index}", f"/path/{index}")
        post(server, COMPLETIONS, {"model": f"model-{index}"})
    assert num_series() == before


def test_ranges_are_not_served(server: ServerProcess) -> None:
    for path in ("/health", "/v1/models", "/openapi.json"):
        ranges = {"range": "bytes=" + "0-," * 5000 + "0-"}
        assert server.client.get(path, headers=ranges).status_code == 200


def test_slow_and_silent_connections_hold_up_nobody() -> None:
    with serve(TINY_LLAMA, "--receive-timeout", "2") as server:
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for number in range(5):
            for index, connection in enumerate(slow[: 200 if number < 2 else 100]):
                connection.sendall(b"GET /health HTTP/1.1\r\n"[number : number + 1] if index % 2 else b"P")
            assert server.complete("a", max_tokens=2).status_code == 200
        for connection in slow:
            connection.settimeout(10)
            try:
                while connection.recv(4096):
                    pass
            except ConnectionError:
                pass
            connection.close()
        body = socket.create_connection(("127.0.0.1", server.port))
        body.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        body.settimeout(10)
        assert b" 408 " in body.recv(4096)[:20]
        body.close()
