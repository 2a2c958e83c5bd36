"""Whether a server may listen where its options say: known before a model is loaded for nothing."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from octavo.errors import ConfigError
from octavo.server.options import ServerOptions


def check_address(options: ServerOptions) -> None:
    """Bind the address for a moment. A Unix socket is left to the server, which makes it, or replaces an old one.

    Raises: `ConfigError` if it is taken, forbidden or not this machine's.
    """
    if options.uds is not None:
        path = Path(options.uds).absolute()
        directory = path.parent
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(f"uds {options.uds!r} cannot be made: there is no directory {directory} to write to.")
        if os.path.lexists(path) and not path.is_socket():
            raise ConfigError(f"uds {options.uds!r} cannot be made: it is there and is no socket. Name another path.")
        return
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        errors = [_bind(family, kind, protocol, address) for family, kind, protocol, _, address in found]
        if errors[0] is not None and None not in errors:
            raise errors[0]
    except OSError as error:
        reason = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        message = f"The server cannot listen on {options.host}, port {options.port}: {reason}. Choose another --port"
        raise ConfigError(f"{message} or --host.") from error


def _bind(family: int, kind: int, protocol: int, address: object) -> OSError | None:
    """Bind one of a host's addresses; return the error if this machine has it not, as "localhost" without IPv6."""
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: old connections do no harm
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return error
    return None
