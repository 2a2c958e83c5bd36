"""A thread that notices when the engine works and gets nowhere: a step that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOKS_PER_LIMIT = 8
"""How often it looks within the shorter of its two limits."""


class Watchdog:
    """Looks at a number that moves as long as the engine works.

    Args:
        heartbeat: returns it; None while there is nothing to do. Called on this object's thread.
        doubt_seconds: `is_stuck` once it has not moved for so long, until it moves again.
        hang_seconds: `on_hang` is called, once, when it has not moved for so long.
    """

    def __init__(
        self,
        heartbeat: Callable[[], object | None],
        *,
        doubt_seconds: float,
        hang_seconds: float,
        on_hang: Callable[[], None],
    ) -> None:
        self.is_stuck = False
        self._heartbeat = heartbeat
        self._doubt_seconds = min(doubt_seconds, hang_seconds)
        self._hang_seconds = hang_seconds
        self._on_hang = on_hang
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="octavo-watchdog", daemon=True)

    def start(self) -> None:
        """Start to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more. Idempotent."""
        self._stopped.set()

    def _watch(self) -> None:
        last, since = self._heartbeat(), time.monotonic()
        while not self._stopped.wait(self._doubt_seconds / _LOOKS_PER_LIMIT):
            beat, now = self._heartbeat(), time.monotonic()
            if beat is None or beat != last:
                last, since = beat, now
            self.is_stuck = now - since >= self._doubt_seconds
            if now - since >= self._hang_seconds:
                self._on_hang()
                return
