"""One flag for each field of `EngineConfig`, with its type, its default and the docstring under it as help."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from octavo.config import EngineConfig

Command = TypeVar("Command", bound=Callable[..., Any])

_NOT_FLAGS = frozenset({"model"})
"""Given in a way of its own."""


class _JsonObject(click.ParamType[dict[str, Any]]):
    """A dict written as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            parsed = json.loads(value)
        except ValueError as error:
            self.fail(f"is not JSON: {error}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"must be a JSON object, got {value!r}", param, ctx)
        return parsed


def engine_flags(command: Command) -> Command:
    """Add a flag for every engine option to a command."""
    helps = field_docs(EngineConfig)
    hints = get_type_hints(EngineConfig)
    for entry in reversed(fields(EngineConfig)):
        if entry.name not in _NOT_FLAGS:
            command = _option(entry.name, hints[entry.name], entry.default, helps[entry.name])(command)
    return command


def given_engine_options(values: dict[str, Any]) -> dict[str, Any]:
    """Return the engine options among a command's parameters, without those left out."""
    names = {entry.name for entry in fields(EngineConfig)}
    return {name: value for name, value in values.items() if name in names and value is not None}


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, on one line."""
    (body,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(body, ast.ClassDef), "the source of a class"
    docs, name = {}, None
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs[name] = " ".join(str(node.value.value).split())
            name = None
        else:
            name = None
    return docs


def _option(name: str, hint: Any, default: Any, text: str) -> Callable[[Command], Command]:
    flag = "--" + name.replace("_", "-")
    if default not in (None, MISSING):
        text += f"  [default: {default}]"
    if hint is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    return click.option(flag, name, type=_click_type(hint), default=None, help=text)


def _click_type(hint: Any) -> Any:
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is Mapping:
        return _JsonObject()
    choices = [part for part in get_args(hint) if part is not type(None)] or [hint]
    if len(choices) == 1 and choices[0] is not hint:
        return _click_type(choices[0])
    return str if str in choices else choices[0]
