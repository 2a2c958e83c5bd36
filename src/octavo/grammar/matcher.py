"""Where one completion stands in its grammar, and which tokens may come next."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import GrammarError
from octavo.grammar.library_errors import error_line

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher
    from numpy.typing import NDArray

    MaskArray = NDArray[np.uint32]


class CompiledGrammar:
    """A grammar ready to be followed, by any number of completions at once."""

    def __init__(self, start: LLMatcher, vocab_size: int) -> None:
        self._start = start
        self.first_mask = fill_mask(start, vocab_size)
        """Allowed-token bits [ceil(V / 32)] of the first token. Read only."""

    def copy_start(self) -> LLMatcher:
        """Return the state before the first token, the caller's own."""
        return self._start.deep_copy()


class GrammarMatcher:
    """Implements `core.request.TokenConstraint`. Its state depends on the output tokens alone.

    The mask of the next token can be filled from the moment the last one is known, on any thread: while the forward
    runs, for one.

    Args:
        ends: bits of the tokens that may not end the output early, which are allowed only where nothing else is.
        held_back: of how many tokens that is true; None means of all.
        on_stale: told when there is a new mask to fill.
    """

    __slots__ = ("_ends", "_grammar", "_held_back", "_lock", "_mask", "_matcher", "_num_tokens", "_on_stale", "failure")

    def __init__(
        self,
        grammar: CompiledGrammar,
        *,
        ends: MaskArray,
        held_back: int | None,
        on_stale: Callable[[GrammarMatcher], None],
    ) -> None:
        self.failure: str | None = None
        """Why no token can come next, although the grammar is not complete."""
        self._grammar = grammar
        self._matcher: LLMatcher | None = None
        """None before the first token."""
        self._ends = ends
        self._held_back = held_back
        self._num_tokens = 0
        self._mask: MaskArray | None = None
        self._lock = threading.Lock()
        self._on_stale = on_stale

    def append(self, token_id: int) -> bool:
        """Take the next token; return whether it ends the output, as the end-of-text token does.

        Raises: `GrammarError` if the grammar does not allow it, or is too complex to go on with.
        """
        with self._lock:
            self._mask = None
            self._num_tokens += 1
            if self._matcher is None:
                self._matcher = self._grammar.copy_start()
            was_stopped = self._matcher.is_stopped()
            if not self._matcher.consume_token(token_id):
                raise GrammarError(_reason(self._matcher))
            ends = was_stopped or self._matcher.stop_reason() == "EndOfSentence"
        if not ends:
            self._on_stale(self)
        return ends

    def mask(self) -> MaskArray:
        """Return the allowed-token bits of the next token, [ceil(V / 32)]; fill them if nobody has. From any thread.

        Mutates: failure, if nothing is allowed.
        """
        with self._lock:
            if self._mask is None:
                self._mask = self._fill()
            return self._mask

    def _fill(self) -> MaskArray:
        first = self._grammar.first_mask
        return self._restricted(first if self._matcher is None else fill_mask(self._matcher, 32 * len(first)))

    def _restricted(self, mask: MaskArray) -> MaskArray:
        """Return what is allowed of what the grammar allows."""
        if self._held_back is None or self._num_tokens < self._held_back:
            others = mask & ~self._ends
            mask = others if others.any() else mask
        if self._matcher is not None and self._matcher.is_error():
            self.failure = _reason(self._matcher)
        elif not mask.any():
            self.failure = "the grammar allows no token of the vocabulary here, and is not complete"
        return mask


def fill_masks(matchers: Sequence[GrammarMatcher], executor: LLExecutor) -> None:
    """Fill the next mask of several completions at once, on the threads of `executor`; a mask that is there stays.

    Releases the GIL, and holds the locks of all of them meanwhile.
    """
    with contextlib.ExitStack() as locks:
        for matcher in matchers:
            locks.enter_context(matcher._lock)
        stale: list[GrammarMatcher] = []
        rows: list[tuple[LLMatcher, int]] = []
        for matcher in matchers:
            if matcher._mask is None and matcher._matcher is not None:
                rows.append((matcher._matcher, len(rows)))
                stale.append(matcher)
        if not stale:
            return
        masks = np.zeros((len(stale), len(stale[0]._grammar.first_mask)), np.uint32)
        executor.unsafe_compute_mask_ptr(rows, masks.ctypes.data, masks[0].nbytes, len(rows))
        for matcher, mask in zip(stale, masks, strict=True):
            matcher._mask = matcher._restricted(mask)


def fill_mask(matcher: LLMatcher, vocab_size: int) -> MaskArray:
    """Return the allowed-token bits of the next token. Releases the GIL."""
    mask = np.zeros(-(-vocab_size // 32), np.uint32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    return mask


def _reason(matcher: LLMatcher) -> str:
    return f"the grammar cannot be followed any further: {error_line(matcher.get_error())}"
