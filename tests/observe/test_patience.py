"""Waiting that takes long is said, and waiting that does not is not."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from octavo.observe.patience import told_if_slow


def test_what_takes_long_is_told_while_it_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda _record: told.set()  # type: ignore[method-assign]
    logging.getLogger("octavo").addHandler(handler)
    with told_if_slow("waiting for rain", patience_s=0.01):
        assert told.wait(60)
    logging.getLogger("octavo").removeHandler(handler)
    assert caplog.messages == ["waiting for rain"]


def test_what_is_over_in_time_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with told_if_slow("waiting for rain", patience_s=0.5):
        pass
    time.sleep(0.7)
    assert caplog.messages == []
