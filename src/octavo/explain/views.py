"""The optional packages that draw: matplotlib for plots, rich for the terminal. Imported where they are needed only."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, install_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_FORMATS = (".svg", ".png", ".pdf")


def require(module: str) -> Any:
    """Import a module of an optional package.

    Raises: `ConfigError` that says how to install it.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ConfigError(f"This needs the package {package}: {install_line('views')}") from error


def check_plot_path(path: str) -> None:
    """Make sure, before any work is done, that a plot can be written there.

    Raises: `ConfigError`.
    """
    require("matplotlib")
    if Path(path).suffix.lower() not in PLOT_FORMATS:
        raise ConfigError(f"A plot is written as {', '.join(PLOT_FORMATS)}; {path!r} ends in none of them.")
    if not Path(path).resolve().parent.is_dir():
        raise ConfigError(f"There is no directory for {path!r}.")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches, which needs no display.

    Raises: `ConfigError` without matplotlib.
    """
    figure: Figure = require("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    return figure


def save_figure(figure: Figure, path: str) -> None:
    """Write a figure in the format that its name ends in; the same figure gives the same file.

    Raises: `ConfigError` for another format.
    """
    check_plot_path(path)
    matplotlib = require("matplotlib")
    with matplotlib.rc_context({"svg.hashsalt": "octavo", "svg.fonttype": "none"}):
        stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix.lower())
        figure.savefig(path, dpi=150, metadata=stamp)
