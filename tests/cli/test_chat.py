"""`octavo chat`, driven through a pseudo-terminal as a person would, and through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from face_fakes import make_llm
from tiny_models import TINY_DIR

from octavo.cli.chat import _Session
from octavo.cli.conversation import Conversation
from octavo.sampling_params import SamplingParams

pty = pytest.importorskip("pty", reason="needs pseudo-terminals")
fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

TIMEOUT_S = 60.0
PROMPT = "> "
TOOL = Path(__file__).parents[2] / "tools" / "make_random_checkpoint.py"


class Terminal:
    """The terminal's side of a program that believes to run in one."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._unread = ""
        self.process = process

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> str:
        """Return what is shown up to and with `text`."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self._unread:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} was not shown within {TIMEOUT_S} s; shown: {self._unread!r}"
            try:
                data = os.read(self._master, 4096)
            except OSError:  # Linux's way to say that the other side has gone
                data = b""
            assert data, f"ended before {text!r} was shown; shown: {self._unread!r}"
            self._unread += re.sub(r"\x1b\[\??[0-9;]*[a-zA-Z]", "", data.decode("utf-8", "replace"))
        shown, _, self._unread = self._unread.partition(text)
        return shown + text

    def interrupt(self, shown: str) -> str:
        """Press Ctrl-C until `shown` appears; return what is shown up to and with it.

        One press may be lost: readline's wait for a key notices a signal only once it has begun, after its prompt.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self.type("\x03")
            if select.select([self._master], [], [], 1.0)[0] or time.monotonic() > deadline:
                return self.expect(shown)

    def say(self, text: str) -> str:
        """Type a line; return what is shown until the next prompt."""
        self.type(text + "\n")
        self.expect(text + "\r\n")
        return self.expect(PROMPT)


@contextlib.contextmanager
def open_chat(model: Path, cache: Path, *arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 500, 0, 0))  # so wide that no line is broken
    command = [
        sys.executable,
        "-m",
        "octavo",
        "chat",
        str(model),
        "--temperature",
        "0",
        "--num-threads",
        "1",
        *arguments,
    ]
    environment = {**os.environ, "TERM": "dumb", "OCTAVO_CACHE": str(cache)}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(slave)
    terminal = Terminal(master, process)
    try:
        terminal.expect(PROMPT)
        yield terminal
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _take_terminal() -> None:
    """Make the pseudo-terminal the one whose Ctrl-C reaches this process."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture(scope="module")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose answers go on for a long time."""
    path = tmp_path_factory.mktemp("endless")
    subprocess.run([sys.executable, TOOL, path, "--scale", "8"], check=True, capture_output=True)
    return path


def test_a_conversation_is_held_kept_and_taken_up_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    with open_chat(TINY_DIR / "llama", tmp_path, "--max-tokens", "6", "--system", "Be kind.") as terminal:
        answer = terminal.say("The capital of France")
        assert "(answer cut after 6 tokens, by --max-tokens)" in answer
        assert "prompt tokens, 6 generated" in terminal.say("/stats")
        terminal.type('"""\nfirst line\nsecond line\n"""\n')
        terminal.expect(PROMPT)
        terminal.say(f"/save {kept}")
        terminal.type("/quit\n")
        assert terminal.process.wait(TIMEOUT_S) == 0
    messages = json.loads(kept.read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[3]["content"] == "first line\nsecond line"
    assert messages[2]["content"].strip() in answer.replace("\r\n", "\n")
    with open_chat(TINY_DIR / "llama", tmp_path, "--max-tokens", "6") as terminal:
        assert "(5 messages)" in terminal.say(f"/load {kept}")
        terminal.say("/reset")
        assert "(/what is unknown" in terminal.say("/what")
        terminal.say(f"/save {kept}")
        assert json.loads(kept.read_text()) == messages[:1]
        terminal.type("\x04")
        assert terminal.process.wait(TIMEOUT_S) == 0


def test_ctrl_c_stops_the_answer_only(endless_model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    with open_chat(endless_model, tmp_path) as terminal:
        terminal.type("go on for ever\n")
        terminal.expect("go on for ever\r\n")
        time.sleep(0.5)
        terminal.type("\x03")
        terminal.expect("(stopped)")
        terminal.expect(PROMPT)
        terminal.say(f"/save {kept}")
        terminal.type("half a line")
        terminal.expect("half a line")
        terminal.interrupt(PROMPT)
        terminal.type("/quit\n")
        assert terminal.process.wait(TIMEOUT_S) == 0
    roles = [message["role"] for message in json.loads(kept.read_text())]
    assert roles == ["user", "assistant"]


def test_lines_of_earlier_sessions_are_recalled(tmp_path: Path) -> None:
    pytest.importorskip("readline")
    with open_chat(TINY_DIR / "llama", tmp_path, "--max-tokens", "2") as terminal:
        terminal.say("a line to remember")
        terminal.type("/quit\n")
        assert terminal.process.wait(TIMEOUT_S) == 0
    with open_chat(TINY_DIR / "llama", tmp_path, "--max-tokens", "2") as terminal:
        terminal.type("\x10\x10\n")  # Ctrl-P: the line before
        assert "a line to remember" in terminal.expect("\r\n")


def pipe(*arguments: str, stdin: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo", "chat", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_ctrl_c_ends_a_chat_whose_messages_come_through_a_pipe() -> None:
    command = [sys.executable, "-m", "octavo", "chat", str(TINY_DIR / "llama"), "--max-tokens", "3"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline(), "it answers, and waits for more"
        deadline = time.monotonic() + TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:  # the first may still fall into the answer
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate()


def test_a_pipe_gets_the_answers_alone() -> None:
    done = pipe(str(TINY_DIR / "llama"), "--temperature", "0", "--max-tokens", "3", stdin="one \\\nmore\n/reset\ntwo\n")
    assert done.returncode == 0, done.stderr
    assert PROMPT not in done.stdout
    assert done.stdout.strip()


def test_a_message_that_does_not_fit_is_refused_and_forgotten() -> None:
    long = "word " * 600
    arguments = (str(TINY_DIR / "llama"), "--max-tokens", "3", "--max-model-len", "256")
    done = pipe(*arguments, stdin=f"{long}\nshort\n/stats\n")
    assert done.returncode == 0, done.stderr
    assert "the maximum context length is 256 tokens" in done.stderr
    assert "or raise --max-model-len." in done.stderr
    assert "1 turn" in done.stderr


def test_an_answer_that_fails_is_told_and_its_turn_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm, executor = make_llm()
    conversation = Conversation("Be kind.")
    session = _Session(llm, conversation, SamplingParams(max_tokens=3), {})
    monkeypatch.setattr("octavo.cli.chat.read_message", lambda *_: "hello")
    executor.broken_request = "0"
    assert session.take_turn()
    assert "(RuntimeError: a broken executor)" in capsys.readouterr().err
    assert [message["role"] for message in conversation.messages] == ["system"]
    executor.broken_request = None
    assert session.take_turn()
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]
    llm.close()


def test_stats_tell_the_last_answer_from_the_time_since_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm, _ = make_llm()
    session = _Session(llm, Conversation(), SamplingParams(max_tokens=3), {})
    for line in ("hello", "there", "/stats"):
        monkeypatch.setattr("octavo.cli.chat.read_message", lambda *_, text=line: text)
        assert session.take_turn()
    last, _, speed, cache = capsys.readouterr().err.splitlines()[-4:]
    assert re.fullmatch(r"\(last answer: [0-9]+ prompt tokens from the prefix cache, 2 turns in the .*\)", last)
    assert "3 generated in" in speed
    assert cache.startswith("(since the start: KV cache: at most")
    llm.close()


def test_a_conversation_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = pipe("m", "--load", str(tmp_path / "no.json"), stdin="")
    assert (done.returncode, done.stderr) == (1, f"Error: {tmp_path / 'no.json'}: no such file or directory\n")


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    shutil.copytree(TINY_DIR / "llama", tmp_path / "m", ignore=shutil.ignore_patterns("chat_template.jinja"))
    done = pipe(str(tmp_path / "m"), stdin="hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no chat template" in done.stderr
