from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.cli.main import main
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.frontend import build
from octavo.server import lifecycle, logs
from octavo.server.address import check_address
from octavo.server.options import ServerOptions
from octavo.server.protocol.limits import RequestLimits


class Caught:
    """What `octavo serve` would have served."""

    config: EngineConfig
    options: ServerOptions
    limits: RequestLimits
    model: str


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Caught:
    caught = Caught()

    def build_engine(config: EngineConfig) -> Any:
        caught.config = config

    def run_server(engine: Any, options: ServerOptions, limits: RequestLimits, model: str) -> int:
        del engine
        caught.options, caught.limits, caught.model = options, limits, model
        return 7

    monkeypatch.setattr("octavo.cli.serve.check_address", lambda _options: None)
    monkeypatch.setattr(build, "build_engine", build_engine)
    monkeypatch.setattr(lifecycle, "run_server", run_server)
    monkeypatch.setattr(logs, "configure_logs", lambda _options: None)
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    return caught


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(main, ["serve", *arguments], **options)


def test_flags_reach_the_engine_the_server_and_the_limits(caught: Caught) -> None:
    flags = (
        "--port 1 --max_num_seqs 5 --served-model-name a --served-model-name b --max-prompts 3 --no-allow-credentials"
    )
    result = run("m", *flags.split())
    assert result.exit_code == 7, result.output
    assert (caught.model, caught.config.model, caught.config.max_num_seqs) == ("m", "m", 5)
    assert (caught.options.port, caught.options.served_model_name) == (1, ("a", "b"))
    assert caught.limits.max_prompts == 3


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_busy_port_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(build, "build_engine", pytest.fail)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = run("m", "--host", host, "--port", str(port))
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: The server cannot listen on {host}, port {port}: another program listens there. Choose another --port"
        " or --host.\n"
    )


def test_a_host_that_is_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1, port 8000: .*Choose another"):
        check_address(ServerOptions(host="192.0.2.1"))


def test_a_free_port_is_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    check_address(ServerOptions(port=port))
    socket.create_server(("127.0.0.1", port)).close()


def test_defaults_are_safe(caught: Caught) -> None:
    run("m")
    assert caught.config.target_itl_ms == 200
    assert caught.options.host == "127.0.0.1"
    assert caught.options.max_num_queued_reqs == 1024
    assert not caught.limits.allow_request_chat_template


def test_a_trusted_request_template_is_a_limit_of_requests(caught: Caught) -> None:
    run("m", "--trust-request-chat-template")
    assert caught.limits.allow_request_chat_template


def test_a_file_sets_flags_and_the_command_line_has_the_last_word(caught: Caught, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("model: m\nport: 5\nmax-num-seqs: 6\nserved-model-name: [x, y]\ntrust_remote_code: true\n")
    assert run("--config", str(file), "--port", "9").exit_code == 7
    assert (caught.model, caught.options.port, caught.config.max_num_seqs) == ("m", 9, 6)
    assert caught.options.served_model_name == ("x", "y")


def test_a_file_names_a_model_that_the_command_line_may_replace(caught: Caught, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("model: a\n")
    for arguments in (["b"], ["-m", "b"]):
        assert run(*arguments, "--config", str(file)).exit_code == 7
        assert caught.model == "b"


def test_a_repeated_flag_takes_one_value_or_a_list_from_a_file(caught: Caught, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    lines = (
        "api-key: secret",
        "served_model_name: [a, b]",
        "enable_prefix_caching: no",
        "seed: null",
        "max_prompts: 0x10",
    )
    file.write_text("\n".join(lines))
    assert run("m", "--config", str(file)).exit_code == 7
    assert (caught.options.api_key, caught.options.served_model_name) == (("secret",), ("a", "b"))
    assert (caught.config.enable_prefix_caching, caught.config.seed, caught.limits.max_prompts) == (False, 0, 16)


@pytest.mark.parametrize(
    "text",
    [
        "max_num_seqs: [1, 2]",
        "max_num_seqs: {a: 1}",
        "max_num_seqs: true",
        "max_num_seqs: 1.5",
        "max_num_seqs: &a [*a]",
        "enable_prefix_caching: 7",
        "request_timeout: 2026-01-01",
        "log_format: [json]",
    ],
)
def test_a_config_file_s_value_is_checked_as_on_the_command_line(caught: Caught, tmp_path: Path, text: str) -> None:
    del caught
    file = tmp_path / "config.yaml"
    file.write_text(text)
    result = run("m", "--config", str(file))
    assert result.exit_code == 2, result.output
    assert "Invalid value for '--" in result.output


@pytest.mark.parametrize("text", ["prot: 5", "- a", "a: [", "config: x"])
def test_a_file_that_cannot_be_meant_is_refused(caught: Caught, tmp_path: Path, text: str) -> None:
    del caught
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert run("m", "--config", str(file)).exit_code == 2
    assert run("m", "--config", str(tmp_path / "none.yaml")).exit_code == 2


def test_flags_of_vllm_without_an_effect_are_taken(caught: Caught) -> None:
    flags = "--enforce-eager --trust-remote-code --swap-space 4 --tensor-parallel-size 1 --disable-log-requests"
    assert run("m", *flags.split()).exit_code == 7
    assert caught.config == EngineConfig("m", target_itl_ms=200)


def test_flags_of_vllms_server_without_an_effect_are_taken_with_a_notice(
    caught: Caught, caplog: pytest.LogCaptureFixture
) -> None:
    flags = "--enable-request-id-headers --response-role assistant --no-disable-fastapi-docs --api-server-count 1"
    assert run("m", *flags.split()).exit_code == 7
    assert caught.model == "m"
    assert "request ids are always sent back" in caplog.text


def test_flags_of_vllm_whose_effect_cannot_be_had_are_refused_with_the_way_out(caught: Caught) -> None:
    del caught
    result = run("m", "--tensor-parallel-size", "2")
    assert result.exit_code == 1
    assert "--num-threads" in result.output


def test_the_key_may_come_from_the_environment(caught: Caught) -> None:
    run("m", env={"OCTAVO_API_KEY": "secret"})
    assert caught.options.api_key == ("secret",)
    run("m", "--api-key", "other", env={"OCTAVO_API_KEY": "secret"})
    assert caught.options.api_key == ("other",)


@pytest.mark.parametrize(
    ("keys", "variable"),
    [(("",), None), (("real", ""), None), ((" \n",), None), ((), ""), ((), "\n")],
    ids=["empty", "one of two", "white space", "variable", "variable of white space"],
)
def test_an_empty_key_is_refused_as_it_would_keep_nobody_out(
    caught: Caught, keys: tuple[str, ...], variable: str | None
) -> None:
    del caught
    result = run("m", *(part for key in keys for part in ("--api-key", key)), env={"OCTAVO_API_KEY": variable})
    assert result.exit_code == 1
    assert "--api-key is empty" in result.stderr


def test_white_space_around_a_key_does_not_count(caught: Caught) -> None:
    run("m", "--api-key", "a key\n", "--api-key", " b")
    assert caught.options.api_key == ("a key", "b")


@pytest.mark.parametrize(
    ("flags", "origins"),
    [
        (["--allowed-origins", '["*"]'], ("*",)),
        (["--allowed-origins", '["http://a", "http://b"]', "--allowed-origins", "c"], ("http://a", "http://b", "c")),
        (["--allowed-origins", "*"], ("*",)),
    ],
    ids=["all", "several", "plain"],
)
def test_origins_may_be_a_json_list_as_of_vllm(caught: Caught, flags: list[str], origins: tuple[str, ...]) -> None:
    assert run("m", *flags).exit_code == 7
    assert caught.options.allowed_origins == origins


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--chat-template", "/no/such.jinja"), "--chat-template is neither a template nor a file"),
        (("--chat-template", "{{ messages"), "--chat-template cannot be used: the chat template is not valid"),
        (("--uds", "/no/such/socket"), "--uds '/no/such/socket' cannot be made: there is no directory /no/such"),
        (("--uds", "/tmp"), "--uds '/tmp' cannot be made: it is there and is no socket"),
        (("--uds", __file__), "cannot be made: it is there and is no socket"),
        (("--ssl-certfile", "/no/such.pem"), "--ssl-certfile cannot be read"),
        (("--ssl-certfile", __file__), "--ssl-certfile and its key cannot be used"),
        (("--ssl-keyfile", __file__), "--ssl-keyfile needs the certificate"),
        (("--allowed-origins", "[*]"), "--allowed-origins '[*]' is no JSON list"),
        (("--allowed-origins", "[" * 100_000), "is no JSON list"),
        (("--allowed-origins", "[5]"), "--allowed-origins must be texts"),
    ],
    ids=[
        "template",
        "syntax",
        "socket",
        "directory",
        "file",
        "certificate",
        "no certificate",
        "key alone",
        "no list",
        "deep",
        "numbers",
    ],
)
def test_files_that_cannot_be_used_are_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, str], problem: str
) -> None:
    monkeypatch.setattr(build, "build_engine", pytest.fail)
    result = run("m", "--port", "0", *flags)
    assert result.exit_code == 1
    assert problem in result.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
@pytest.mark.parametrize("password", [None, "secret"])
def test_a_certificate_with_its_key_is_taken(caught: Caught, tmp_path: Path, password: str | None) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    protection = ["-noenc"] if password is None else ["-passout", f"pass:{password}"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=x"]
    subprocess.run([*command, *protection, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    flags = ["--ssl-keyfile", str(key), "--ssl-certfile", str(certificate), "--ssl-ca-certs", str(certificate)]
    assert run("m", *flags).exit_code == 7
    assert caught.options.ssl_keyfile == str(key)
    result = run("m", *flags[:-1], str(key))
    assert result.exit_code == 1
    assert "--ssl-ca-certs cannot be used" in result.stderr


def test_without_a_model_the_usage_is_told(caught: Caught) -> None:
    del caught
    assert run().exit_code == 2


def test_without_the_extra_the_line_to_install_it_is_told() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from octavo.cli.main import main; sys.argv = ['octavo', 'serve', 'm']; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install 'octavo[server]'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "flags", [["--port", "70000"], ["--port", "-1"], ["--max-body-bytes", "0"], ["--request-timeout", "-1"]]
)
def test_options_that_cannot_work_are_refused(caught: Caught, flags: list[str]) -> None:
    del caught
    assert run("m", *flags).exit_code == 1
