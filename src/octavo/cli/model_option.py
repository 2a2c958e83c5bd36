"""The option that names the model, for commands that cannot run without one."""

from __future__ import annotations

from typing import Any

import click


class _ModelOption(click.Option):
    """Says, where it is missing, what it wants."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert and check the value."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            raise click.UsageError("name the model with -m or --model, for example: -m smollm2-135m", ctx) from None


model_option = click.option(
    "-m",
    "--model",
    required=True,
    cls=_ModelOption,
    help="A GGUF file, a directory, a hub id or a built-in name.",
)
