"""The `octavo` command: its subcommands, and how errors and Ctrl-C end it.

Exit status: 0 all went well, 1 something could not be served, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

from octavo.cli.file_errors import told
from octavo.errors import OctavoError
from octavo.version import __version__

_COMMANDS = {
    "bench": "octavo.cli.bench",
    "chat": "octavo.cli.chat",
    "collect-env": "octavo.cli.collect_env",
    "explain": "octavo.cli.explain",
    "generate": "octavo.cli.generate",
    "inspect": "octavo.cli.inspect",
    "lab": "octavo.cli.lab",
    "pull": "octavo.cli.pull",
    "roofline": "octavo.cli.roofline",
    "run-batch": "octavo.cli.run_batch",
    "serve": "octavo.cli.serve",
    "top": "octavo.cli.top",
    "trace": "octavo.cli.trace",
}


class _Failure(click.ClickException):
    """An error of Octavo as one line."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Write it to stderr."""
        del file
        click.echo(f"Error: {' '.join(self.message.split())}", err=True)


class _Commands(click.Group):
    """Loads a subcommand's module when it is named, and turns Octavo's errors into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands."""
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one subcommand."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(_COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command), "a module of the table has a command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand; where there is none of that name, say which is near."""
        name = args[0].replace("_", "-")
        near = difflib.get_close_matches(name, _COMMANDS, n=1)
        if name not in _COMMANDS and near:
            ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader has gone: click ends quietly
        except (OctavoError, OSError) as error:
            raise _Failure(told(error)) from error
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(130)


@click.group(
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.version_option(__version__, prog_name="octavo")
def main() -> None:
    """Octavo: language models on the machine you have.

    A first try: octavo chat smollm2-135m
    """
