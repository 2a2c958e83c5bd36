"""Reads the body of a request within its limits: type, size, time and nesting, before anything parses it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from octavo.server.http import header
from octavo.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

    from octavo.server.options import ServerOptions

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_VALUES_OF_PART = 4
"""Texts and numbers that take as long to read and check as a list, an object or a key."""


async def read_json_body(request: Request, options: ServerOptions) -> bytes:
    """Return the body of a request that says it is JSON. It is not parsed, only measured.

    Raises: `ApiError`.
    """
    kind = (header(request.scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        rule = "Only 'application/json' is allowed; send the header Content-Type: application/json."
        raise ApiError(400, f"Unsupported Media Type: {rule}", "content-type")
    limit = options.max_body_bytes
    announced = header(request.scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    try:
        body = await asyncio.wait_for(_read(request, limit), options.receive_timeout)
    except asyncio.TimeoutError:
        raise ApiError(408, f"the body took more than {options.receive_timeout:g} seconds to arrive.") from None
    check_structure(body, max_depth=options.max_json_depth, max_parts=options.max_json_parts)
    return body


def check_structure(body: bytes, *, max_depth: int, max_parts: int) -> None:
    """Raise `ApiError` for a JSON text that would be read for long. What is no JSON is left to the parser."""
    max_values = _VALUES_OF_PART * max_parts
    if num_parts(body) <= min(max_depth, max_parts) and num_values(body) <= max_values:  # even with those of strings
        return
    structure = without_strings(body)
    if num_parts(structure) > max_parts:
        limit = f"{max_parts} lists, objects and keys; the server's option max_json_parts is the limit"
        raise ApiError(400, f"the body has more than {limit}.", "body")
    if num_values(structure) > max_values:
        limit = f"{max_values} values; the server's option max_json_parts, {_VALUES_OF_PART} values each, is the limit"
        raise ApiError(400, f"the body has more than {limit}.", "body")
    if is_nested_deeper(structure, max_depth):
        raise ApiError(400, f"the body is nested more than {max_depth} deep.", "body")


def without_strings(body: bytes) -> bytes:
    """Return what is left of a JSON text: its structure."""
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(without_escapes.split(b'"')[::2])


def num_parts(structure: bytes) -> int:
    """Return the number of lists, objects and keys, each of which takes the parser longer than a text or a number."""
    return structure.count(b"[") + structure.count(b"{") + structure.count(b":")


def num_values(structure: bytes) -> int:
    """Return the number of values that follow another one: about all that lists hold."""
    return structure.count(b",")


def is_nested_deeper(structure: bytes, limit: int) -> bool:
    """Tell whether brackets nest deeper than a limit."""
    brackets = structure.translate(_ONE_KIND, _NO_BRACKETS)
    if b"[" * (limit + 1) in brackets:
        return True
    for _ in range(limit):  # each pass takes off the innermost level, at the speed of C
        inner = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == inner:
            return False
    return bool(brackets)


async def _read(request: Request, limit: int) -> bytes:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
    except ClientDisconnect:  # nobody reads the answer, but the log and the metrics have it
        raise ApiError(400, "the connection was closed before the body had arrived.", "body") from None
    return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body has more than {limit} bytes; the server's option max_body_bytes is the limit.")
