"""How a command is told its model: as its first argument, or with `-m` or `--model`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

import click

from octavo.cli.engine_flags import EngineCommand

Command = TypeVar("Command", bound=Callable[..., Any])

_ARGUMENT, _OPTION = "model", "model_option"
_HELP = "The same as MODEL: a GGUF file, a directory, a hub id or a built-in name."


@overload
def takes_model(command: Command, /) -> Command: ...
@overload
def takes_model(*, required: bool = True, default: str | None = None) -> Callable[[Command], Command]: ...
def takes_model(
    command: Command | None = None, /, *, required: bool = True, default: str | None = None
) -> Command | Callable[[Command], Command]:
    """Give a command MODEL and `-m/--model`, either of which becomes its parameter `model`.

    Args:
        required: whether the command cannot do without; else it may get None.
        default: what it gets where neither is given.
    """

    def add(decorated: Command) -> Command:
        @functools.wraps(decorated)
        def with_model(*args: Any, **params: Any) -> Any:
            context = click.get_current_context()
            params["model"] = _chosen(context, params.pop(_ARGUMENT), params.pop(_OPTION)) or default
            if required and params["model"] is None:
                command = context.command_path.removeprefix(context.find_root().command_path).strip()
                example = f"octavo {command} smollm2-135m"
                raise click.UsageError(f"name the model, as MODEL or with --model, for example: {example}", context)
            return decorated(*args, **params)

        text = _HELP if default is None else f"{_HELP}  [default: {default}]"
        option = click.option("-m", "--model", _OPTION, metavar="MODEL", help=text)
        return click.argument(_ARGUMENT, required=False)(option(with_model))  # type: ignore[return-value]

    return add if command is None else add(command)


def _chosen(context: click.Context, argument: str | None, option: str | None) -> str | None:
    """Return the model that was named. The command line has the last word over a file of flags."""
    if argument is None or option is None:
        return option if argument is None else argument
    from_file = context.get_parameter_source(_OPTION) is not click.core.ParameterSource.COMMANDLINE
    if argument != option and not from_file:
        command = context.command
        hint = command.hint_for([argument], context) if isinstance(command, EngineCommand) else ""
        raise click.UsageError(f"the model is named twice: {argument} and {option}{hint}", context)
    return argument
