"""Errors about a field that the client has sent under another name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from octavo.errors import RequestError


@contextlib.contextmanager
def in_other_words(names: Mapping[str, str]) -> Iterator[None]:
    """Let every `RequestError` of the block name what the client has sent.

    Args:
        names: what an error may name, and what that is called where the request came from. What is no name of a field
            is a phrase of messages.
    """
    try:
        yield
    except RequestError as error:
        parameter = error.parameter and names.get(error.parameter, error.parameter).partition(".")[0]
        message = _renamed(str(error), names, error.parameter)
        if (message, parameter) == (str(error), error.parameter):
            raise
        raise RequestError(message, parameter=parameter, value=error.value) from None


def _renamed(message: str, names: Mapping[str, str], parameter: str | None) -> str:
    """Put the other words in. A name that is also a word of prose is one only where the error is about it."""
    meant = [name for name in names if name == parameter or not name.isidentifier() or "_" in name]
    if not meant:
        return message
    longest_first = sorted(meant, key=len, reverse=True)
    pattern = "|".join(rf"\b{name}\b" if name.isidentifier() else re.escape(name) for name in longest_first)
    return re.sub(pattern, lambda match: names[match[0]], message)
