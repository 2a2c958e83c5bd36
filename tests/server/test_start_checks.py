"""What cannot work is refused before a model is loaded for nothing, with the value, the limit and the way out."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.cli.main import main
from octavo.errors import ConfigError
from octavo.frontend import build
from octavo.server.address import check_address
from octavo.server.chosen_files import check_files
from octavo.server.options import ServerOptions
from octavo.server.protocol.limits import RequestLimits

Certificate = tuple[str, str]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Files of a certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, certificate = (tmp_path_factory.mktemp("tls") / name for name in ("key.pem", "certificate.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=x"]
    subprocess.run([*command, "-noenc", "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return str(certificate), str(key)


def bind(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(path)
    return bound


@pytest.mark.parametrize("path", ["x" * 108, "é" * 54], ids=["letters", "bytes"])
def test_a_socket_s_path_that_is_too_long_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"^uds '.*' has 108 bytes, .* at most 107: .*relative"):
        check_address(ServerOptions(uds=path))
    check_address(ServerOptions(uds="x" * 107))


def test_a_socket_that_another_program_listens_to_is_refused_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with bind("live") as other:
        other.listen(0)
        for _ in range(3):  # more than it takes
            with pytest.raises(ConfigError, match=r"^uds 'live' cannot be made: another program listens there"):
                check_address(ServerOptions(uds="live"))
        other.setblocking(False)
        other.accept()[0].close()


def test_a_socket_that_a_server_has_left_behind_is_no_hindrance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    bind("old").close()
    check_address(ServerOptions(uds="old"))
    check_address(ServerOptions(uds="new"))


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".com", "\udcff", "no.such.host.invalid"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on .*Choose another --port or --host"):
        check_address(ServerOptions(host=host, port=0))


def test_no_host_is_every_address() -> None:
    check_address(ServerOptions(host="", port=0))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ssl_cert_reqs": 3}, r"ssl_cert_reqs must be 0, 1 or 2, got 3"),
        ({"chat_template_timeout": 1e300}, r"chat_template_timeout must be at most 1e\+09 seconds, got 1e\+300"),
        ({"served_model_name": ("a", "")}, "served_model_name must not be empty"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_value_that_no_server_can_have_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ServerOptions(**options)


def test_a_limit_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_stop_strings must be 0 or more, got -5"):
        RequestLimits(max_stop_strings=-5)


def test_certificates_of_clients_need_one_of_the_server_and_who_signs_them(certificate: Certificate) -> None:
    with pytest.raises(ConfigError, match=r"ssl_cert_reqs needs the certificate of the server too: .*--ssl-certfile"):
        check_files(ServerOptions(ssl_cert_reqs=2))
    server = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
    with pytest.raises(ConfigError, match=r"ssl_cert_reqs=2 .*give --ssl-ca-certs"):
        check_files(ServerOptions(**server, ssl_cert_reqs=2))  # type: ignore[arg-type]
    check_files(ServerOptions(**server, ssl_cert_reqs=2, ssl_ca_certs=certificate[0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("flags", [["--uds", "x" * 200], ["--host", "a..b"], ["--ssl-cert-reqs", "3"]], ids=" ".join)
def test_the_command_refuses_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    monkeypatch.setattr(build, "build_engine", pytest.fail)
    result = CliRunner().invoke(main, ["serve", "m", "--port", "0", *flags])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
