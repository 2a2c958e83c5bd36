"""`--config file.yaml`: flags from a file, for which the command line has the last word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


def _read(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Make the file's entries the defaults of the command's flags."""
    if path is None:
        return
    flags = {name.lstrip("-").replace("-", "_"): entry for entry in ctx.command.params for name in entry.opts}
    defaults = {}
    for key, value in _entries(ctx, param, path).items():
        flag = flags.get(str(key).replace("-", "_"))
        if flag is None or flag.name is None or flag is param:
            raise click.BadParameter(f"{path} sets {key!r}, which is no flag of this command", ctx, param)
        defaults[flag.name] = _as_given(flag, value)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _as_given(flag: click.Parameter, value: Any) -> Any:
    """Return a value as the command line would give it, so that it is checked as there."""
    if value is None:
        return None
    if getattr(flag, "multiple", False):
        return [_spelled(entry) for entry in (value if isinstance(value, list) else [value])]
    return _spelled(value)


def _spelled(value: Any) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)  # it holds itself, or has keys that JSON has not


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
