"""Commands that need the packages of `octavo[server]` say how to install them where they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import ConfigError, install_line


@contextmanager
def server_extra(command: str) -> Iterator[None]:
    """Import what needs the extra within this.

    Raises: `ConfigError` with the line to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("octavo"):
            raise
        raise ConfigError(
            f"`{command}` needs the server's packages; install them with: {install_line('server')}"
        ) from error
