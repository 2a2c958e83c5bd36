"""JSON from files nobody vouches for: bounded size and depth, no duplicate keys, no NaN."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NoReturn, TypeVar

from octavo.errors import ModelLoadError
from octavo.formats.mapped_file import read_small_file

T = TypeVar("T", dict[str, object], list[object])

MAX_JSON_BYTES = 64 << 20
"""A model's JSON files other than tokenizer.json; real ones stay below 20 MB."""


def parse_json_object(data: bytes, path: Path, field: str) -> dict[str, object]:
    """Parse a JSON object. Raises ModelLoadError naming the file and the field."""
    return _parse(data, path, field, dict)


def read_json_object(path: str | os.PathLike[str]) -> dict[str, object]:
    """Read a file that holds one JSON object. Raises ModelLoadError naming the file."""
    return parse_json_object(_read(Path(path)), Path(path), "content")


def read_json_list(path: str | os.PathLike[str]) -> list[object]:
    """Read a file that holds one JSON array. Raises ModelLoadError naming the file."""
    return _parse(_read(Path(path)), Path(path), "content", list)


def _read(path: Path) -> bytes:
    try:
        return read_small_file(path, MAX_JSON_BYTES)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(data: bytes, path: Path, field: str, kind: type[T]) -> T:
    try:
        value = json.loads(data, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
    except RecursionError:
        raise ModelLoadError(f"{path}: {field}: is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ModelLoadError(f"{path}: {field}: is not valid JSON: {error}") from None
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "an array"
        raise ModelLoadError(f"{path}: {field}: is a JSON {type(value).__name__}, expected {expected}")
    return value


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key!r} appears twice")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number JSON allows")
