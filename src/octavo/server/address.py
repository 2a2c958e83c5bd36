"""Whether a server may listen where its options say: known before a model is loaded for nothing."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

from octavo.errors import ConfigError
from octavo.server.options import ServerOptions

_MOST_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""Of a Unix socket: what the system's `sun_path` holds before its end."""


def check_address(options: ServerOptions) -> None:
    """Bind the address for a moment. A Unix socket is left to the server, which makes it, or replaces an old one.

    Raises: `ConfigError` if it is taken, forbidden or not this machine's.
    """
    if options.uds is not None:
        _check_socket(options.uds)
        return
    host, port = options.host, options.port
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        errors = [_bind(family, kind, protocol, address) for family, kind, protocol, _, address in found]
        if errors[0] is not None and None not in errors:
            raise errors[0]
    except UnicodeError as error:
        raise _no_address(host, port, "that is no name of a host") from error
    except OSError as error:
        reason = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise _no_address(host, port, reason) from error


def _no_address(host: str, port: int, reason: str) -> ConfigError:
    message = f"The server cannot listen on {host.encode(errors='replace').decode()}, port {port}: {reason}."
    return ConfigError(f"{message} Choose another --port or --host.")


def _check_socket(name: str) -> None:
    """Look at what is there, and knock: a server would take the place of one that lives as of one that has ended."""
    path, size = Path(name).absolute(), len(os.fsencode(name))
    if size > _MOST_PATH_BYTES:
        way_out = "Name a shorter one, such as one relative to the working directory"
        raise ConfigError(f"uds {name!r} has {size} bytes, and a socket's path at most {_MOST_PATH_BYTES}: {way_out}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"uds {name!r} cannot be made: there is no directory {path.parent} to write to.")
    if not os.path.lexists(path):
        return
    if not path.is_socket():
        raise ConfigError(f"uds {name!r} cannot be made: it is there and is no socket. Name another path.")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # who listens may have no time
        try:
            probe.connect(name)
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConfigError(f"uds {name!r} cannot be made: {error.strerror}. Name another path.") from error
    raise ConfigError(f"uds {name!r} cannot be made: another program listens there. Name another path.")


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
