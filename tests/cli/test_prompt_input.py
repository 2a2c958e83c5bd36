"""Prompts from the command line, a file, and what is piped in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from face_fakes import make_engine
from tiny_models import TINY_DIR

from octavo.cli.main import main

pty = pytest.importorskip("pty", reason="needs pseudo-terminals")

COMMANDS = ["generate", "explain"]


@pytest.fixture(autouse=True)
def _fake_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.llm.LLM._start", lambda llm, _config: llm._attach(make_engine()[0]))


def generate(*arguments: str, stdin: bytes | str | None) -> Result:
    return CliRunner().invoke(main, ["generate", "m", "-q", *arguments], input=stdin)


def test_what_is_piped_in_is_one_prompt_without_its_last_line_break() -> None:
    assert generate(stdin="one\ntwo\n").stdout == "one\ntwo\n"


def test_a_given_prompt_leaves_stdin_alone() -> None:
    assert generate("-p", "hello", stdin="piped").stdout == "hello\n"


def test_stdin_as_a_file_of_prompts_is_read_beside_a_given_one() -> None:
    assert generate("-p", "hello", "--prompt-file", "-", stdin="piped\n").stdout == "hello\npiped\n"


def test_piped_bytes_that_are_no_text_are_refused() -> None:
    result = generate(stdin=b"\xff\xfe")
    assert result.exit_code == 2
    assert "stdin is not UTF-8 text" in result.stderr


@pytest.fixture
def command(request: pytest.FixtureRequest) -> list[str]:
    return [sys.executable, "-m", "octavo", request.param, str(TINY_DIR / "llama")]


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_an_empty_stdin_is_told_with_the_ways_out(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "stdin is empty: give at least one prompt: with -p, --prompt or --prompt-file" in done.stderr


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_a_silent_stdin_is_waited_for_aloud(command: list[str]) -> None:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stderr is not None
    assert "waiting for the prompt, which is all of stdin" in process.stderr.readline()
    process.stdin.close()
    assert process.wait(60) == 2
    process.stderr.close()


@pytest.fixture
def terminal() -> Iterator[int]:
    master, slave = pty.openpty()
    yield slave
    os.close(slave)
    os.close(master)


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_a_terminal_is_not_read(command: list[str], terminal: int) -> None:
    done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "give at least one prompt" in done.stderr
