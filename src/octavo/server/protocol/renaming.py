"""Errors about a field that another API calls by another name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from octavo.errors import RequestError


@contextlib.contextmanager
def in_other_words(names: Mapping[str, str]) -> Iterator[None]:
    """Let every `RequestError` of the block name the field that the client has sent.

    Args:
        names: OpenAI's chat names to those of the API that the request came by.
    """
    try:
        yield
    except RequestError as error:
        own = error.parameter
        if own is None or own not in names:
            raise
        message = re.sub(rf"\b{re.escape(own)}\b", names[own], str(error))
        raise RequestError(message, parameter=names[own].partition(".")[0], value=error.value) from None
