"""`--config file.yaml`: flags from a file, for which the command line has the last word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


def _read(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Make the file's entries the defaults of the command's flags."""
    if path is None:
        return
    names = {flag.lstrip("-").replace("-", "_"): entry.name for entry in ctx.command.params for flag in entry.opts}
    defaults = {}
    for key, value in _entries(ctx, param, path).items():
        name = names.get(str(key).replace("-", "_"))
        if name is None or name == param.name:
            raise click.BadParameter(f"{path} sets {key!r}, which is no flag of this command", ctx, param)
        defaults[name] = value
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _entries(ctx: click.Context, param: click.Parameter, path: str) -> dict[Any, Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        raise click.BadParameter("reading YAML needs PyYAML: pip install 'octavo[server]'", ctx, param) from None
    try:
        entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}", ctx, param) from None
    if not isinstance(entries, dict):
        raise click.BadParameter(f"{path} must hold names and values, as in `port: 8000`", ctx, param)
    return entries


config_option = click.option(
    "--config",
    is_eager=True,
    expose_value=False,
    callback=_read,
    help="YAML file of flags by name, without the dashes; those on the command line win.",
)
