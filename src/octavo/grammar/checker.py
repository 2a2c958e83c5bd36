"""Has grammars checked by a worker process, which is stopped when one takes too long, and replaced when one ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import weakref
from contextlib import suppress
from typing import Any

from octavo.errors import QueueFullError
from octavo.grammar.limits import CHECK_CPU_SECONDS
from octavo.grammar.sources import JsonOptions
from octavo.worker_process import LENGTH_BYTES, with_length, worker_command, worker_environment

_START_SECONDS = 60.0
"""On a busy machine Python takes seconds to start."""


class GrammarChecker:
    """One process, started when it is needed, which does one job at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while a job runs."""
        self._running: list[subprocess.Popen[bytes]] = []
        """The process, if there is one."""
        self._num_closes = 0
        weakref.finalize(self, _end, self._running)

    def start(self) -> None:
        """Start the process, and wait until it is ready: that is nobody's time.

        Raises: `QueueFullError` if the system does not let us; ValueError if it does not work; TimeoutError.
        """
        self.check("choice", '["a"]', JsonOptions(), seconds=_START_SECONDS)

    def close(self) -> None:
        """End the process, if there is one, and the job that it may have. Idempotent."""
        self._num_closes += 1
        for process in self._running[:]:
            process.kill()
        with self._lock:
            _end(self._running)

    def check(self, kind: str, source: str, options: JsonOptions, *, seconds: float) -> str:
        """Return a grammar in llguidance's notation, if it can be served.

        Args:
            seconds: how long to wait for it.

        Raises: ValueError with the reason why it cannot; `QueueFullError` if the system lets nobody check it;
            TimeoutError.
        """
        job = {"seconds": CHECK_CPU_SECONDS, "kind": kind, "source": source, "options": options}
        data = json.dumps(job).encode()
        num_closes = self._num_closes
        with self._lock:
            answer = self._ask(data, seconds)
            if answer is None and self._num_closes != num_closes:
                raise ValueError("the engine was closed")
            answer = answer or self._ask(data, seconds)  # somebody else may have ended the first process
        if answer is None:
            raise ValueError("it is nested too deeply, or takes too much memory, to be compiled")
        if "error" in answer:
            raise ValueError(answer["error"])
        return str(answer["grammar"])

    def _ask(self, job: bytes, seconds: float) -> dict[str, Any] | None:
        """Return the answer to a job; None if the process has crashed.

        Raises: ValueError if it takes too much processor time; `QueueFullError`; TimeoutError.
        """
        process = self._running[0] if self._running else self._start()
        assert process.stdin is not None, "pipes were asked for"
        assert process.stdout is not None, "pipes were asked for"
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            process.kill()

        alarm = threading.Timer(max(seconds, 0), give_up)
        alarm.daemon = True
        try:
            alarm.start()
        except RuntimeError:
            raise QueueFullError("no thread to check a grammar can be started; try again later.") from None
        try:
            with suppress(OSError):  # then it has ended, and there is no answer
                process.stdin.write(with_length(job))
                process.stdin.flush()
            length = int.from_bytes(process.stdout.read(LENGTH_BYTES), "big")
            answer = process.stdout.read(length)
        finally:
            alarm.cancel()
        if length and len(answer) == length:
            return dict(json.loads(answer))
        status = _end(self._running)
        with suppress(QueueFullError):  # the next job will tell
            self._start()  # while nobody waits for it
        if is_late.is_set():
            raise TimeoutError
        if status == -signal.SIGPROF:  # by its own timer
            raise ValueError(f"it takes more than {CHECK_CPU_SECONDS:g} s to compile")
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process. Raises: `QueueFullError` if the system does not let us."""
        try:
            process = subprocess.Popen(
                worker_command("octavo.grammar.check_worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=worker_environment(),
            )
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise QueueFullError(f"no process to check grammars can be started ({reason}); try again later.") from None
        self._running.append(process)
        return process


def _end(running: list[subprocess.Popen[bytes]]) -> int | None:
    """End the process, if there is one, and return its status."""
    if not running:
        return None
    process = running.pop()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        return process.wait(1)  # without jobs it ends itself; to kill one that is just ending would lose its status
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
