"""A process that renders chat templates: a template is a program, and only a process can be stopped at any point.

Reads jobs from stdin and writes answers to stdout, each four bytes of length and then JSON. It ends when stdin does. A
job that takes too much CPU time ends it: the system's timer does that even in the middle of C code.

Run as `python -m octavo.tokenizer.template_worker`, by `octavo.server.templates`.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import IO, Any

from octavo.errors import RequestError
from octavo.tokenizer.chat_template import render_chat

LENGTH_BYTES = 4
_MEMORY_BYTES = 1 << 30


def main() -> None:
    """Serve until stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a terminal or service; the parent decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _limit_memory()
    _serve(sys.stdin.buffer, sys.stdout.buffer)


def _serve(jobs: IO[bytes], answers: IO[bytes]) -> None:
    while head := jobs.read(LENGTH_BYTES):
        job = json.loads(jobs.read(int.from_bytes(head, "big")))
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        answer = json.dumps(_render(job["arguments"], job["max_chars"])).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
        answers.flush()


def _render(arguments: dict[str, Any], max_chars: int) -> dict[str, str | None]:
    try:
        return {"text": render_chat(**arguments, max_chars=max_chars)}
    except RequestError as error:
        return {"error": str(error), "parameter": error.parameter}
    except (MemoryError, RecursionError) as error:
        return {"error": f"the chat template failed: {type(error).__name__}.", "parameter": "messages"}


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        return  # not on this system


if __name__ == "__main__":
    main()
