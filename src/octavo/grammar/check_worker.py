"""A process that reads grammars before the engine's own does: one may take for ever to compile, or overflow the stack.

Run as `python -m octavo.grammar.check_worker`, by `octavo.grammar.checker`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from llguidance import LLMatcher

from octavo.grammar.library_errors import error_line
from octavo.grammar.limits import CHECK_STACK_BYTES, NICENESS, library_limits
from octavo.grammar.sources import JsonOptions, library_grammar
from octavo.worker_process import serve_jobs


def main() -> None:
    """Serve until stdin ends."""
    threading.stack_size(CHECK_STACK_BYTES)
    with contextlib.suppress(AttributeError, OSError):
        os.nice(NICENESS)
    serve_jobs(_check)


def _check(job: dict[str, Any]) -> dict[str, str]:
    answers: list[dict[str, str]] = []
    thread = threading.Thread(target=lambda: answers.append(_read(job)))  # whose stack is as large as it is to be
    thread.start()
    thread.join()
    return answers[0]


def _read(job: dict[str, Any]) -> dict[str, str]:
    """Return the grammar in llguidance's notation, or why it cannot be served."""
    try:
        grammar = library_grammar(job["kind"], job["source"], JsonOptions(*job["options"]))
        fault = LLMatcher.validate_grammar(grammar, limits=library_limits())
        error = fault and error_line(fault)
    except ValueError as refusal:
        error = str(refusal)
    except (MemoryError, RecursionError) as refusal:
        error = f"it takes too much memory ({type(refusal).__name__})"
    return {"error": error} if error else {"grammar": grammar}


if __name__ == "__main__":
    main()
