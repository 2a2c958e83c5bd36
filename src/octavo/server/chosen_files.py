"""The files that a server's options name: read before a model is loaded, so that a wrong one costs no time."""

from __future__ import annotations

import ssl
from pathlib import Path

from octavo.errors import ConfigError, RequestError
from octavo.server.options import ServerOptions


class _PasswordError(Exception):
    """The TLS key has a password, which the server asks for when it starts."""


def check_files(options: ServerOptions) -> None:
    """Read the chat template and the files of TLS. Raises: `ConfigError`."""
    if options.chat_template is not None:
        checked_template(options.chat_template)
    _check_tls(options)


def checked_template(given: str) -> str:
    """Return what `read_template` does, if it is a chat template. Raises: `ConfigError`."""
    from octavo.tokenizer.chat_template import check_template  # Jinja takes 80 ms to import

    template = read_template(given)
    try:
        check_template(template)
    except RequestError as error:
        raise ConfigError(f"chat_template cannot be used: {error}.") from None
    return template


def read_template(given: str) -> str:
    """Return the template in a file; or what was given, where that is one. Raises: `ConfigError`."""
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template is neither a template nor a file that can be read: {error}.") from error


def _check_tls(options: ServerOptions) -> None:
    names = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
    given = {name: path for name in names if (path := getattr(options, name)) is not None}
    for name, path in given.items():
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {error}.") from None
    needy = [*given, *(["ssl_cert_reqs"] if options.ssl_cert_reqs else [])]
    if needy and "ssl_certfile" not in given:
        raise ConfigError(f"{needy[0]} needs the certificate of the server too: give --ssl-certfile.")
    if options.ssl_cert_reqs and "ssl_ca_certs" not in given:
        raise ConfigError(f"ssl_cert_reqs={options.ssl_cert_reqs} would take no client's: give --ssl-ca-certs.")
    if given:
        _load_tls(options)


def _load_tls(options: ServerOptions) -> None:
    """Load what the server will load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def refuse() -> str:
        raise _PasswordError

    try:
        if options.ssl_ca_certs is not None:
            context.load_verify_locations(options.ssl_ca_certs)
    except ssl.SSLError as error:
        raise ConfigError(f"ssl_ca_certs cannot be used: {_reason(error)}.") from None
    try:
        context.load_cert_chain(str(options.ssl_certfile), options.ssl_keyfile, refuse)
    except _PasswordError:
        return
    except ssl.SSLError as error:
        raise ConfigError(f"ssl_certfile and its key cannot be used: {_reason(error)}.") from None


def _reason(error: ssl.SSLError) -> str:
    return error.reason.lower().replace("_", " ") if error.reason else "it is no certificate or key in PEM"
