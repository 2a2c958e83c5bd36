"""Where the log goes, in which form, and that each line says which request it belongs to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from octavo.server.json_logs import JsonFormatter
from octavo.server.request_log import current_request_id

if TYPE_CHECKING:
    from octavo.server.options import ServerOptions

_TEXT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"


class _RequestIdFilter(logging.Filter):
    """Gives every record the id of the request that is being served, or a dash."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_request_id.get() or "-"
        return True


def configure_logs(options: ServerOptions) -> None:
    """Send the server's, the engine's and uvicorn's log to stderr."""
    handler = logging.StreamHandler()
    handler.addFilter(_RequestIdFilter())
    handler.setFormatter(JsonFormatter() if options.log_format == "json" else logging.Formatter(_TEXT))
    for name in ("octavo", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(options.uvicorn_log_level.upper() if name == "uvicorn" else logging.INFO)
