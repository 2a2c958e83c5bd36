"""Values of flags that are more than a word or a number."""

from __future__ import annotations

import json
from typing import Any

import click


class JsonObject(click.ParamType[dict[str, Any]]):
    """A dict written as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError) as error:
            self.fail(f"is not JSON: {error}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"must be a JSON object, got {value!r}", param, ctx)
        return parsed


class WholeNumbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers, separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"expected whole numbers separated by commas, got {value!r}", param, ctx)


class ApiKey(click.ParamType[str]):
    """The key of a server, without the white space that a file ends with."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return str(value).strip()
