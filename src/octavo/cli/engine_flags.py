"""One flag for each field of a dataclass of options, with its type, its default and the docstring under it as help."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from octavo.cli.foreign_flags import PREFIX, engine_foreign_flags, given_foreign_options
from octavo.cli.option_types import CheckedChoice, JsonObject
from octavo.config import EngineConfig
from octavo.errors import ConfigError, RequestError
from octavo.vllm_options import own_options

Command = TypeVar("Command", bound=Callable[..., Any])

_NOT_FLAGS = frozenset({"model"})
"""Given in a way of its own."""


class EngineCommand(click.Command):
    """A command with `engine_flags`: it takes vLLM's too, its help lists them last, its errors name flags."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params += engine_foreign_flags(taken={name for param in self.params for name in param.opts})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; words that belong to nothing are refused with what they may have been meant for."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            ctx.fail(f"unexpected: {shlex.join(rest)}{self.hint_for(rest, ctx)}")
        return rest

    def hint_for(self, words: list[str], ctx: click.Context) -> str:
        """Return what words beside the model may have been meant for, as a sentence that goes on; or nothing."""
        options = {param.name: param for param in self.params if isinstance(param, click.Option)}
        if "prompts" in options:
            return f". A prompt is given with -p: -p {shlex.quote(' '.join([*ctx.params['prompts'], *words]))}"
        if "system" in options:
            return ". A message is typed when the model is there, or piped in"
        lists = [option for name, option in options.items() if option.multiple and ctx.params.get(name)]
        if len(lists) == 1:
            flag = _flag_of(lists[0])
            return f". A flag is repeated for each of its values: {' '.join(f'{flag} {shlex.quote(w)}' for w in words)}"
        return ""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error about an option names its flag, not the argument of the API."""
        try:
            return super().invoke(ctx)
        except (ConfigError, RequestError) as error:
            error.args = (self.named_by_flags(str(error), of_request=isinstance(error, RequestError)),)
            raise

    def named_by_flags(self, message: str, *, of_request: bool) -> str:
        """Put flags in the place of names of options: of a message's first word, and of what can be no other word."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        flags = {str(option.name).removeprefix(PREFIX): _flag_of(option) for option in options}

        def flag_for(name: re.Match[str]) -> str:
            flag = flags.get(f"sampling_{name[0]}") if of_request else None
            return flag or flags.get(name[0], name[0])

        return re.sub(r"^[a-z_]+\b|\b[a-z]+(?:_[a-z]+)+\b", flag_for, message)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both lists."""
        engine_names = {entry.name for entry in fields(EngineConfig)} - _NOT_FLAGS
        own: list[tuple[str, str]] = []
        engine: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                (engine if param.name in engine_names else own).append(record)
        for heading, records in (("Options", own), ("Engine options", engine)):
            with formatter.section(heading):
                formatter.write_dl(records)


def named_by_flags(message: str, *, of_request: bool = False) -> str:
    """Return a message of the engine with the flags of the command that runs in the place of names of options."""
    context = click.get_current_context(silent=True)
    command = None if context is None else context.command
    return command.named_by_flags(message, of_request=of_request) if isinstance(command, EngineCommand) else message


def _flag_of(option: click.Option) -> str:
    """Return the flag that is like the option's name, or its longest."""
    own = f"--{str(option.name).removeprefix(PREFIX)}".replace("_", "-")
    return own if own in option.opts else option.opts[-1]


def engine_flags(command: Command) -> Command:
    """Add a flag for every engine option to a command."""
    return flags_of(EngineConfig, without=_NOT_FLAGS)(command)


def flags_of(cls: type, *, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Return what adds a flag for every field of a dataclass to a command; None is a flag that was not given."""
    helps, hints = field_docs(cls), get_type_hints(cls)
    choice: type[click.Choice[str]] = CheckedChoice if cls is EngineConfig else click.Choice

    def add(command: Command) -> Command:
        for entry in reversed(fields(cls)):
            if entry.name not in without:
                command = _option(entry.name, hints[entry.name], entry.default, helps[entry.name], choice)(command)
        return command

    return add


def given_engine_options(values: dict[str, Any]) -> dict[str, Any]:
    """Return the engine options among a command's parameters, without those left out and those without effect."""
    given = {**given_options(EngineConfig, values), **given_foreign_options(values)}
    return own_options(given, [entry.name for entry in fields(EngineConfig)])


def given_options(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a command's parameters that are fields of a dataclass, without those left out."""
    names = {entry.name for entry in fields(cls)}
    return {name: value for name, value in values.items() if name in names and value not in (None, ())}


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


def _option(
    name: str, hint: Any, default: Any, text: str, choice: type[click.Choice[str]]
) -> Callable[[Command], Command]:
    flag = "--" + name.replace("_", "-")
    if default not in (None, (), "", MISSING):
        text += f"  [default: {default}]"
    if hint is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    is_list = get_origin(hint) is tuple
    kind = _click_type(get_args(hint)[0] if is_list else hint, choice)
    metavar = f"[{'|'.join(kind.choices)}]" if isinstance(kind, click.Choice) else None
    return click.option(flag, name, type=kind, multiple=is_list, default=None, help=text, metavar=metavar)


def _click_type(hint: Any, choice: type[click.Choice[str]]) -> Any:
    if get_origin(hint) is Literal:
        return choice(get_args(hint))
    if get_origin(hint) is Mapping:
        return JsonObject()
    choices = [part for part in get_args(hint) if part is not type(None)] or [hint]
    if len(choices) == 1 and choices[0] is not hint:
        return _click_type(choices[0], choice)
    return str if str in choices else choices[0]
