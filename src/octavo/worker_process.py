"""A worker process, as it starts and as it works: what may take too long, or crash, is done where that harms nobody.

Jobs come from stdin, answers go to stdout, each four bytes of length and then JSON. The process ends when stdin does. A
job that takes too much CPU time ends it: the system's timer does that even in the middle of native code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

LENGTH_BYTES = 4
_MEMORY_BYTES = 1 << 30


def worker_command(module: str) -> tuple[str, ...]:
    """Return the command line of a process that runs a module, which calls `serve_jobs`."""
    return (sys.executable, "-m", module)


def worker_environment() -> dict[str, str]:
    """Return the environment of such a process: it finds modules where this one does, wherever octavo lies."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def with_length(message: bytes) -> bytes:
    """Return a job or an answer as it goes through a pipe."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def serve_jobs(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer one job after another until stdin ends; a job's `seconds` are the CPU time that it may take."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a terminal or service; the parent decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _limit_memory()
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    while head := jobs.read(LENGTH_BYTES):
        job = json.loads(jobs.read(int.from_bytes(head, "big")))
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        answer = json.dumps(work(job)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(with_length(answer))
        answers.flush()


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        return  # not on this system
