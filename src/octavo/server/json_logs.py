"""Log records as lines of JSON, for collectors that index fields."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes that every record has; others were given with the call, and are told."""


class JsonFormatter(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message`, what came in `extra`, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update((name, value) for name, value in vars(record).items() if name not in _PLAIN)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
