"""The body of an error in the words of the API that the request's path belongs to: OpenAI's, or Anthropic's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.server.http import served_path
from octavo.server.messages_api.errors import messages_error_body

if TYPE_CHECKING:
    from starlette.types import Scope

    from octavo.server.protocol.errors import ApiError

MESSAGES_PATH = "/v1/messages"


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is for Anthropic's API."""
    path = served_path(scope)
    return path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")


def error_body(scope: Scope, error: ApiError) -> bytes:
    """Return the JSON."""
    return messages_error_body(error) if speaks_anthropic(scope) else error.body()
