"""Values of flags that are more than a word or a number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    _ObjectType: TypeAlias = click.ParamType[dict[str, Any]]
    _NumbersType: TypeAlias = click.ParamType[tuple[int, ...]]
    _TextType: TypeAlias = click.ParamType[str]
    _ChoiceType: TypeAlias = click.Choice[str]
else:  # before click 8.4 they are not generic at run time
    _ObjectType = _NumbersType = _TextType = click.ParamType
    _ChoiceType = click.Choice


class JsonObject(_ObjectType):
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


class CheckedChoice(_ChoiceType):
    """Values of an option that is checked later: others are passed on, as that check has more to say of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            return str(value)


class WholeNumbers(_NumbersType):
    """Whole numbers, separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"expected whole numbers separated by commas, got {value!r}", param, ctx)


class ApiKey(_TextType):
    """The key of a server, without the white space that a file ends with."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return str(value).strip()
