"""Typed, checked access to a config.json: every value that a model is sized by passes through here.

The file is the user's, so a wrong value is a `ModelLoadError` naming the source, the key and the value. A JSON null
counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeGuard

from octavo.errors import ModelLoadError

MAX_SIZE = 1 << 27
"""No dimension of a real model comes near it; keeps products of a few sizes far from 2^63."""
MIN_NUMBER, MAX_NUMBER = 1e-12, 1e12
"""No epsilon, base or factor of a real model is outside; keeps products and quotients of a few finite."""


class ConfigReader:
    """One JSON object. `source` starts every message."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self.source = source
        self._values = values

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there as null, of which some files make a difference."""
        return key in self._values and self._values[key] is None

    def size(self, key: str, default: int | None = None) -> int:
        """Return a positive integer. Without a default the key must exist."""
        return self._integer(key, default, 1)

    def count(self, key: str, default: int | None = None) -> int:
        """Return an integer that may be zero. Without a default the key must exist."""
        return self._integer(key, default, 0)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number of sensible magnitude. Without a default the key must exist."""
        value = self._get(key, default)
        if not _is_number(value):
            self.fail(key, f"is {value!r:.200}, expected a number from {MIN_NUMBER:g} to {MAX_NUMBER:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"is {value!r}, expected true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string. Without a default the key must exist."""
        value = self._get(key, default)
        if not isinstance(value, str):
            self.fail(key, f"is {value!r}, expected a string")
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of strings, which must exist."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, f"is {value!r:.200}, expected a list of strings")
        return value

    def counts(self, key: str) -> list[int]:
        """Return a list of integers that may be zero, which must exist."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_SIZE for item in value):
            self.fail(key, f"is {value!r:.200}, expected a list of integers from 0 to {MAX_SIZE}")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return a list of `count` positive numbers, which must exist."""
        value = self._get(key, None)
        if not isinstance(value, list) or len(value) != count:
            self.fail(key, f"must be a list of {count} numbers")
        if not all(map(_is_number, value)):
            self.fail(key, f"holds something that is not a number from {MIN_NUMBER:g} to {MAX_NUMBER:g}")
        return tuple(float(item) for item in value)

    def nested(self, key: str) -> ConfigReader | None:
        """Return an object inside this one, or None if absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, f"is a {type(value).__name__}, expected an object")
        return ConfigReader(value, f"{self.source}: {key}")

    def over(self, defaults: Mapping[str, object]) -> ConfigReader:
        """Return a reader of this object's keys, and of `defaults` where this has none or null."""
        present = {key: value for key, value in self._values.items() if value is not None or key not in defaults}
        return ConfigReader({**defaults, **present}, self.source)

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise the error that every bad value ends in."""
        raise ModelLoadError(f"{self.source}: {key} {problem}")

    def _integer(self, key: str, default: int | None, smallest: int) -> int:
        value = self._get(key, default)
        if type(value) is not int or not smallest <= value <= MAX_SIZE:
            self.fail(key, f"is {value!r:.200}, expected an integer from {smallest} to {MAX_SIZE}")
        return value

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(key)
        if value is None:
            if default is None:
                self.fail(key, "is missing")
            return default
        return value


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and MIN_NUMBER <= value <= MAX_NUMBER
