"""Errors in Anthropic's words, for the paths that speak its API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from octavo.server.messages_api.objects import MessagesError, MessagesErrorInfo

if TYPE_CHECKING:
    from octavo.server.protocol.errors import ApiError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(error: ApiError) -> MessagesError:
    """Return an error as Anthropic's clients know it."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    return MessagesError(MessagesErrorInfo(_TYPES.get(error.status, fallback), error.text))


def messages_error_body(error: ApiError) -> bytes:
    """Return `{"type": "error", "error": …}`."""
    return msgspec.json.encode(messages_error(error))
