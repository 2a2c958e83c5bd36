"""Whoever has no key gets nothing but health checks and the dashboard's empty page: checked before anything else."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

from octavo.server.error_bodies import error_body
from octavo.server.http import header, send_json, served_path
from octavo.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ping", "/version"})
_NO_KEY = ApiError(401, "the request brings no key of this server, neither as x-api-key nor as a bearer token.")


class RequireKey:
    """Refuses requests without one of the keys with 401, for every path that is not exactly an open one.

    Args:
        open_paths: served to everybody.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str], open_paths: frozenset[str] = OPEN_PATHS) -> None:
        self._app = app
        self._open_paths = open_paths
        self._digests = [_digest(key.encode("utf-8", "surrogateescape")) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if served_path(scope) in self._open_paths or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        headers = {b"www-authenticate": b"Bearer", b"connection": b"close"}
        await send_json(send, 401, error_body(scope, _NO_KEY), headers)

    def _has_key(self, scope: Scope) -> bool:
        """Look at the two headers that may hold a key: OpenAI's, and Anthropic's."""
        scheme, _, token = (header(scope, b"authorization") or b"").partition(b" ")
        found = self._is_known(token), self._is_known(header(scope, b"x-api-key") or b"")
        return (scheme.lower() == b"bearer" and found[0]) or found[1]

    def _is_known(self, token: bytes) -> bool:
        """Compare with every key; digests, so that the time tells neither their content nor their length."""
        given = _digest(token.strip())
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
