from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_process import TINY_LLAMA, ServerProcess, serve

from octavo.server.auth import RequireKey

KEYS = ("a-key", "another ключ")
PROTECTED = (
    "/v1/models", "/v1/completions", "/tokenize", "/metrics", "/load", "/openapi.json", "/nope", "//", "//v1/models",
    "/dashboard/", "//dashboard", "/dashboard/../v1/models",
    "/V1/models", "/v1/../v1/models", "/v1%2fmodels", "/health/", "/health/../v1/models", "//health", "/HEALTH",
    "/health%20", "/version/x", "/v1/models?/health", "/v1/models;/health", "/api", "/api/v1/models", "/api//health",
)  # fmt: skip


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerProcess]:
    with serve(TINY_LLAMA, "--api-key", KEYS[0], "--api-key", KEYS[1], "--root-path", "/api") as process:
        yield process


def status_of(server: ServerProcess, target: str, headers: bytes = b"", method: str = "GET", host: bytes = b"x") -> int:
    """Send a request as it is, without a client that would tidy it up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\n".encode() + b"Host: " + host + b"\r\n" + headers + b"\r\n")
        return int(connection.recv(4096).split(b" ", 2)[1])


@pytest.mark.parametrize("target", PROTECTED)
def test_nothing_but_the_health_checks_is_reached_without_a_key(guarded: ServerProcess, target: str) -> None:
    assert {status_of(guarded, target, method=method) for method in ("GET", "POST", "OPTIONS", "FOO")} == {401}
    assert status_of(guarded, target, host=b"x/?") in (400, 401)
    assert status_of(guarded, target, host=b"x/health#") in (400, 401)


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/health?a=/v1"])
def test_health_checks_need_no_key(guarded: ServerProcess, path: str) -> None:
    assert guarded.client.get(path).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [
        b"", b"Bearer", b"Bearer ", b"Bearer a-ke", b"Bearer a-keyy", b"Bearer A-KEY", b"Basic a-key", b"a-key",
        b"Bearer \xff\xfe", b"Bearer " + b"k" * 60_000, b"Bearer a-key, Bearer a-key", b"Bearer a-key a-key",
    ],
)  # fmt: skip
def test_a_wrong_key_is_no_key(guarded: ServerProcess, authorization: bytes) -> None:
    assert status_of(guarded, "/v1/models", b"Authorization: " + authorization + b"\r\n") == 401


def test_a_key_may_be_bytes_that_are_no_text() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive, send
        reached.append(True)

    async def nothing(*_: Any) -> Any:
        return None

    reached: list[bool] = []
    guard = RequireKey(app, [os.fsdecode(b"k\xfe")])
    for key in (b"k\xfe", b"k\xff"):
        scope = {"type": "http", "path": "/v1/models", "headers": [(b"x-api-key", key)]}
        asyncio.run(guard(scope, nothing, nothing))
    assert reached == [True]


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(guarded: ServerProcess, key: str) -> None:
    for scheme in ("Bearer", "bearer", "BEARER "):
        headers = {"authorization": f"{scheme} {key}".encode()}
        assert httpx.get(f"{guarded.url}/v1/models", headers=headers).status_code == 200


def test_the_refusal_is_an_error_as_the_api_has_them(guarded: ServerProcess) -> None:
    response = guarded.client.get("/v1/models")
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("AuthenticationError", 401)
    assert response.headers["www-authenticate"] == "Bearer"
    error = guarded.client.post("/v1/messages").json()["error"]
    assert error["type"] == "authentication_error"


def test_the_description_says_how_to_bring_a_key(guarded: ServerProcess) -> None:
    document = guarded.client.get("/openapi.json", headers={"x-api-key": KEYS[0]}).json()
    schemes = document["components"]["securitySchemes"]
    assert {scheme["type"] for scheme in schemes.values()} == {"http", "apiKey"}
    assert document["paths"]["/v1/completions"]["post"]["security"] == [{name: []} for name in schemes]
    assert "security" not in document["paths"]["/health"]["get"]


def test_requests_are_counted_by_path_also_behind_a_prefix(guarded: ServerProcess) -> None:
    guarded.client.headers["x-api-key"] = KEYS[0]
    for path in ("/v1/models", "/v1/models/nope", "/nope", "/health"):
        guarded.client.get(path)
    lines = guarded.client.get("/metrics").text.splitlines()
    del guarded.client.headers["x-api-key"]
    handlers = {match[1] for line in lines if (match := re.match('http_requests_total{handler="([^"]*)"', line))}
    assert {"/v1/models", "/v1/models/{model}", "none"} <= handlers
    assert not any("/api" in handler or "health" in handler for handler in handlers)
