"""The outermost layer: gives every request an id, logs it, and turns what nobody caught into an answer."""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextvars import ContextVar
from typing import TYPE_CHECKING

from octavo.server.error_bodies import error_body
from octavo.server.http import header, send_json, served_path
from octavo.server.protocol.errors import ApiError, api_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("octavo.server")
access_logger = logging.getLogger("octavo.access")

current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)
"""For the log: which request a line belongs to."""

_GOOD_ID = re.compile(rb"[\w.:/+=@-]{1,128}")
_POLLED = frozenset({"/octavo/snapshot"})
"""What an open dashboard asks several times a second: logged only where it fails."""
_GONE = 499
"""Logged where a client left before it got an answer."""


class RequestLog:
    """Takes the id from `X-Request-Id` where it is a decent one, and sends it back; keeps the connection's own `send`.

    Args:
        logs_access: whether to log a line for each request.
    """

    def __init__(self, app: ASGIApp, *, logs_access: bool) -> None:
        self._app = app
        self._logs_access = logs_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # only HTTP is spoken here
        started, status = time.monotonic(), _GONE
        given = header(scope, b"x-request-id") or b""
        request_id = given.decode() if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "send": send}
        token = current_request_id.set(request_id)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            logger.exception("a request failed")
            if status == _GONE:
                await send_json(send_with_id, 500, error_body(scope, api_error(error)))
        finally:
            if self._logs_access and (status >= 400 or served_path(scope) not in _POLLED):
                path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")
                seconds = time.monotonic() - started
                access_logger.info("%s %s %d %.3f s", scope["method"][:16], path[:256], status, seconds)
            current_request_id.reset(token)


class LimitHeaders:
    """Refuses requests with too many headers; how many bytes they may have is the protocol's to check."""

    def __init__(self, app: ASGIApp, max_headers: int) -> None:
        self._app = app
        self._max_headers = max_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(scope["headers"]) > self._max_headers:
            error = ApiError(431, f"the request has more than {self._max_headers} headers.")
            await send_json(send, 431, error_body(scope, error), {b"connection": b"close"})
            return
        await self._app(scope, receive, send)
