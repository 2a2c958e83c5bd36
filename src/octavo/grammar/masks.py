"""Fills the masks of the next step on threads of its own, while the forward of that step runs."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Sequence

import numpy as np

from octavo.grammar.matcher import GrammarMatcher, fill_masks
from octavo.program.forward_batch import AllowedTokens

_MAX_THREADS = 8
"""Masks of a step that are filled at once: on all processors alike, so that no thread of the forward falls behind."""

_Work = queue.SimpleQueue[GrammarMatcher | None]


class MaskFiller:
    """Threads that are started with the first grammar, and one list of masks for each step that has some."""

    def __init__(self) -> None:
        self._work: _Work = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_started = False

    def note(self, matcher: GrammarMatcher) -> None:
        """Have the next mask of a completion filled soon."""
        if not self._is_started:
            self._start()
        self._work.put(matcher)

    def collect(self, matchers: Sequence[GrammarMatcher | None]) -> AllowedTokens | None:
        """Return the masks of a step's logit rows; None if no row has one. Fills what is not filled yet."""
        rows = [row for row, matcher in enumerate(matchers) if matcher is not None]
        if not rows:
            return None
        masks: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
        failures: dict[int, str] = {}
        for row in rows:
            matcher = matchers[row]
            assert matcher is not None, "of the rows that have one"
            masks.append(matcher.mask())
            if matcher.failure is not None:
                failures[row] = matcher.failure
        return AllowedTokens(np.array(rows, np.int32), np.stack(masks), failures)

    def _start(self) -> None:
        with self._lock:
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=_fill, args=(self._work,), name="octavo-masks", daemon=True).start()
                weakref.finalize(self, self._work.put, None)


def _fill(work: _Work) -> None:
    from llguidance import LLExecutor

    executor = LLExecutor(min(_MAX_THREADS, os.cpu_count() or 1))
    while (matcher := work.get()) is not None:
        stale = {matcher: None}  # in order; one that was told of twice would wait for itself
        while not work.empty():
            if (matcher := work.get()) is None:
                return
            stale[matcher] = None
        fill_masks(list(stale), executor)
        del matcher, stale  # else they would stay alive until the next ones
