"""Waiting that takes long is said, and waiting that does not is not."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator

import pytest

from octavo.observe.patience import told_if_slow


@pytest.fixture
def told() -> Iterator[queue.SimpleQueue[str]]:
    """What the package's logger says, from any thread."""
    messages: queue.SimpleQueue[str] = queue.SimpleQueue()
    handler = logging.Handler()
    handler.emit = lambda record: messages.put(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("octavo").addHandler(handler)
    yield messages
    logging.getLogger("octavo").removeHandler(handler)


def test_what_takes_long_is_told_while_it_is_waited_for(told: queue.SimpleQueue[str]) -> None:
    with told_if_slow("waiting for rain", patience_s=0.01):
        assert told.get(timeout=60) == "waiting for rain"


def test_what_is_over_in_time_is_not_told(told: queue.SimpleQueue[str]) -> None:
    with told_if_slow("waiting for rain", patience_s=5.0):
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert timers
    for timer in timers:
        timer.join(60)
    assert told.empty()
