"""Bytes of a request to its struct; what does not fit is a `RequestError` that names the field."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from octavo.errors import RequestError

Body = TypeVar("Body", bound=msgspec.Struct)

_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>\w+)`")


def read_body(raw: bytes, kind: type[Body]) -> Body:
    """Return the struct that the JSON in `raw` describes.

    Raises: `RequestError`.
    """
    try:
        body: Body = _decoder(kind).decode(raw)
        return body
    except msgspec.ValidationError as error:
        raise _misfit(error) from None
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _read_leniently(raw, kind, error)


def _read_leniently(raw: bytes, kind: type[Body], strict: Exception) -> Body:
    """Read what is not JSON but what Python's writer makes of NaN and lone surrogates, to name the field at fault."""
    if not any(mark in raw for mark in (b"NaN", b"Infinity", b"\\u")):
        raise _malformed(str(strict))
    try:
        value: Any = json.loads(raw)
        _refuse_surrogates(value)
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None
    except RequestError:
        raise
    except (ValueError, RecursionError):
        raise _malformed(str(strict)) from None


def _refuse_surrogates(value: Any) -> None:
    """Raise `RequestError` naming the entry of a body that holds half a character."""
    for name, entry in value.items() if isinstance(value, dict) else ():
        try:
            json.dumps([name, entry], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            shown = name.encode("ascii", "replace").decode()[:64]
            raise RequestError(f"{shown} is not valid Unicode: it holds a lone surrogate.", parameter=shown) from None


@lru_cache(maxsize=16)
def _decoder(kind: type[Body]) -> msgspec.json.Decoder[Body]:
    return msgspec.json.Decoder(kind)


def _malformed(reason: str) -> RequestError:
    return RequestError(f"the body is not valid JSON: {reason}.", parameter="body")


def _misfit(error: msgspec.ValidationError) -> RequestError:
    """Return msgspec's complaint with the field in front of it."""
    text = str(error)
    missing = _MISSING.search(text)
    path = _PATH.search(text)
    rule = _PATH.sub("", text).replace("`", "")
    where = path["path"] if path else ""
    if missing:
        where = f"{where}.{missing['field']}".lstrip(".")
        rule = "is required"
    parameter = re.split(r"[.\[]", where, maxsplit=1)[0]
    if not parameter:
        return RequestError(f"the body must be a JSON object: {rule}.", parameter="body")
    return RequestError(f"{where}: {rule[0].lower()}{rule[1:]}.", parameter=parameter)
