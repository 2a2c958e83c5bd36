"""What cannot be served, as a status and OpenAI's error JSON: short, and without paths or addresses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from octavo.errors import EngineDeadError, GrammarError, QueueFullError, RequestError, RequestTimeoutError
from octavo.server.protocol.responses import ErrorInfo, ErrorResponse

if TYPE_CHECKING:
    from octavo.outputs import OutputError

MAX_MESSAGE_CHARS = 1_000
"""Characters of a message; more would mostly be the client's own text."""
_MAX_NAME_CHARS = 128

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    431: "HeadersTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
_REQUEST_CODES = frozenset({RequestError.code, GrammarError.code})
"""Of errors that lie in what was asked for."""
_HIDDEN = re.compile(r"0x[0-9a-fA-F]{4,}|(?<![\w:/.])(?:[A-Za-z]:)?(?:[\\/][\w.@+-]*\w){2,}")
"""Addresses, and absolute paths of two parts or more."""
_OWN_ROUTES = re.compile(r"/v1/[a-z/]+")


class ApiError(Exception):
    """An answer that says why there is none.

    Args:
        status: of HTTP.
        message: may hold what the client sent; is cut and cleaned.
        parameter: the field at fault.
        tells_paths: every path in the message is one that clients may know.
    """

    def __init__(self, status: int, message: str, parameter: str | None = None, *, tells_paths: bool = False) -> None:
        super().__init__(message)
        self._tells_paths = tells_paths
        self.status = status
        self.parameter = parameter

    @property
    def kind(self) -> str:
        """What OpenAI's clients call it."""
        return _TYPES.get(self.status, "Error")

    @property
    def text(self) -> str:
        """The message as clients get it: cut, without paths and addresses."""
        return _cut(str(self)) if self._tells_paths else _clean(str(self))

    def body(self) -> bytes:
        """Return `{"error": …}`."""
        info = ErrorInfo(message=self.text, type=self.kind, param=self.parameter, code=self.status)
        return msgspec.json.encode(ErrorResponse(info))


def api_error(error: BaseException) -> ApiError:
    """Return the answer to a request that ended with an exception; only what is meant for clients is told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), error.parameter)
    if isinstance(error, QueueFullError):
        return ApiError(503, str(error))
    if isinstance(error, RequestTimeoutError):
        return ApiError(504, str(error))
    if isinstance(error, EngineDeadError):
        return ApiError(503, "the engine is not running")
    return ApiError(500, "the server failed; its log says why")


def output_error(error: OutputError) -> ApiError:
    """Return the answer to a request whose output has `error` set."""
    return ApiError(400 if error.code in _REQUEST_CODES else 500, error.message)


def model_not_found(name: str, served: str) -> ApiError:
    """Return the answer to a request for a model that is not served.

    Args:
        served: the name of the one that is.
    """
    shown = name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "…"
    message = f"The model `{shown}` does not exist; this server has `{served}` (see /v1/models)."
    return ApiError(404, message, "model", tells_paths=True)


def _clean(message: str) -> str:
    return _HIDDEN.sub(lambda match: match[0] if _OWN_ROUTES.fullmatch(match[0]) else "…", _cut(message))


def _cut(message: str) -> str:
    text = message.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "…"
