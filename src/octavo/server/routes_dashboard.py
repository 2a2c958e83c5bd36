"""The dashboard: one page that draws what `/octavo/snapshot` tells, as files of this package.

The files hold no data and no secret, so they are served without a key; what they show needs it. Their policy lets the
browser run and ask nothing but this server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Response

_DIRECTORY = Path(__file__).parent / "dashboard"
_PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Trusted types: no text that came from somewhere can become markup or code, whatever a script does."""


def add_dashboard(app: FastAPI) -> frozenset[str]:
    """Add the routes. Returns: the paths, which hold nothing that needs a key."""
    paths = {"/dashboard/" + file.name: file for file in _DIRECTORY.iterdir() if file.suffix in _TYPES}
    paths["/dashboard"] = paths.pop("/dashboard/" + _PAGE)
    for path, file in paths.items():
        app.add_api_route(path, _answer_with(file))
    app.add_api_route("/", _redirect)
    return frozenset({*paths, "/"})


def _answer_with(file: Path) -> Callable[[], Awaitable[Response]]:
    body, media_type = file.read_bytes(), _TYPES[file.suffix]

    async def answer() -> Response:
        return Response(body, headers=_HEADERS, media_type=media_type)

    return answer


async def _redirect() -> Response:
    """Relative, so that it also works behind a proxy that takes a prefix off."""
    return Response(status_code=307, headers={"location": "dashboard"})
