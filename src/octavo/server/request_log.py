"""The outermost layer: gives every request an id, logs it, and turns what nobody caught into an answer."""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextvars import ContextVar
from typing import TYPE_CHECKING

from octavo.server.error_bodies import error_body, speaks_anthropic
from octavo.server.http import CLIENT_GONE, header, send_json, served_path
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


class RequestLog:
    """Takes the id from `X-Request-Id` where it is a decent one, and sends it back; keeps the connection's own `send`.

    Anthropic's clients look for it under another name.

    Args:
        logs_access: whether to log a line for each request.
    """

    def __init__(self, app: ASGIApp, *, logs_access: bool) -> None:
        self._app = app
        self._logs_access = logs_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # only HTTP is spoken here
        started, status = time.monotonic(), CLIENT_GONE
        given = header(scope, b"x-request-id") or b""
        request_id = given.decode() if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "send": send}
        token = current_request_id.set(request_id)
        names = (b"x-request-id", b"request-id") if speaks_anthropic(scope) else (b"x-request-id",)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(name, request_id.encode()) for name in names]
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            logger.exception("a request failed")
            if status == CLIENT_GONE:
                await send_json(send_with_id, 500, error_body(scope, api_error(error)))
        finally:
            if self._logs_access and (status >= 400 or served_path(scope) not in _POLLED):
                _log_access(scope, status, time.monotonic() - started)
            current_request_id.reset(token)


def _log_access(scope: Scope, status: int, seconds: float) -> None:
    """Log a line, whose parts are fields too where lines are objects."""
    method, path = scope["method"][:16], scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:256]
    parts = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6)}
    access_logger.info("%s %s %d %.3f s", method, path, status, seconds, extra=parts)


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
