"""Faults of nested fields: the message names the place, the parameter is the field of the body that it is in."""

from __future__ import annotations

from typing import Any, NoReturn

from octavo.errors import RequestError


def required(value: Any, place: str) -> Any:
    """Return a value that may be left out elsewhere. Raises: `RequestError` if it is not there."""
    if value is None:
        refuse_field(place, "is required")
    return value


def refuse_field(place: str, rule: str) -> NoReturn:
    """Raise `RequestError`.

    Args:
        place: as "input[2].content[0].text".
        rule: what the value there must be, or why it cannot be served.
    """
    raise RequestError(f"{place} {rule}.", parameter=place.partition("[")[0].partition(".")[0])
