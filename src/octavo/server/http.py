"""The few things about ASGI messages that every part of the server needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import Scope, Send

CLIENT_GONE = 499
"""Logged and counted where a client left before it got an answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of a name, which is given in lower case."""
    return next((value for key, value in scope["headers"] if key == name), None)


def served_path(scope: Scope) -> str:
    """Return the path that the router will look at: without the prefix of a proxy."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root + "/") else path


def request_id(scope: Scope) -> str:
    """Return the id of a request, which `RequestLog` has chosen."""
    return str(scope["state"]["request_id"])


async def send_start(send: Send, status: int, media_type: bytes, headers: Mapping[bytes, bytes]) -> None:
    """Begin an answer."""
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"content-type", media_type), *headers.items()]}
    )


async def send_part(send: Send, body: bytes, *, more: bool) -> None:
    """Send the next part of an answer, or the last."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_json(send: Send, status: int, body: bytes, headers: Mapping[bytes, bytes] | None = None) -> None:
    """Send a whole answer."""
    length: dict[bytes, bytes] = {b"content-length": str(len(body)).encode()}
    await send_start(send, status, b"application/json", {**length, **(headers or {})})
    await send_part(send, body, more=False)


def json_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of bytes that are JSON."""
    return Response(body, status, headers, "application/json")
