"""Whoever has no key gets nothing but the health checks: checked before anything else looks at a request."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

from octavo.server.http import header, send_json, served_path

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ping", "/version"})
_UNAUTHORIZED = b'{"error":"Unauthorized"}'


class RequireKey:
    """Refuses requests without one of the keys with 401, for every path that is not exactly one of `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if served_path(scope) in OPEN_PATHS or self._is_known(header(scope, b"authorization")):
            await self._app(scope, receive, send)
            return
        await send_json(send, 401, _UNAUTHORIZED, {b"www-authenticate": b"Bearer", b"connection": b"close"})

    def _is_known(self, authorization: bytes | None) -> bool:
        """Compare with every key; digests, so that the time tells neither their content nor their length."""
        scheme, _, token = (authorization or b"").partition(b" ")
        given = _digest(token.strip())
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
