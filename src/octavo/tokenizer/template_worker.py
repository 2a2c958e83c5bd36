"""A process that renders chat templates: a template is a program, and only a process can be stopped at any point.

Run as `python -m octavo.tokenizer.template_worker`, by `octavo.server.templates`.
"""

from __future__ import annotations

from typing import Any

from octavo.errors import RequestError
from octavo.tokenizer.chat_template import render_chat
from octavo.worker_process import serve_jobs


def _render(job: dict[str, Any]) -> dict[str, str | None]:
    try:
        return {"text": render_chat(**job["arguments"], max_chars=job["max_chars"])}
    except RequestError as error:
        return {"error": str(error), "parameter": error.parameter}
    except (MemoryError, RecursionError) as error:
        return {"error": f"the chat template failed: {type(error).__name__}.", "parameter": "messages"}


if __name__ == "__main__":
    serve_jobs(_render)
