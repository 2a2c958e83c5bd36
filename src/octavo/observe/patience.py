"""What takes long for a reason that cannot be seen is said."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("octavo")

_PATIENCE_S = 1.0


@contextmanager
def told_if_slow(message: str, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Warn once of what is waited for, if it is not over after `patience_s`."""
    timer = threading.Timer(patience_s, logger.warning, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
