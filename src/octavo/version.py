"""The version of the installed package. Looked up when imported, which takes some milliseconds: import it late."""

from __future__ import annotations

from importlib import metadata


def _installed() -> str:
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:  # a source tree on the path
        return "0+unknown"


__version__ = _installed()
