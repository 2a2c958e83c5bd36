"""Compiles grammars, off the engine's thread, within limits on time and memory, and remembers the latest of them.

A worker process tries each one first: what would take too long, or crash, does so there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import OctavoError, QueueFullError, RequestError
from octavo.grammar.checker import GrammarChecker
from octavo.grammar.library_errors import error_line
from octavo.grammar.limits import COMPILE_SECONDS, COMPILE_STACK_BYTES, MASK_SECONDS, NICENESS, library_limits
from octavo.grammar.masks import MaskFiller
from octavo.grammar.matcher import CompiledGrammar, GrammarMatcher
from octavo.structured_outputs import FramedOutputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llguidance import LLMatcher, LLTokenizer

    from octavo.grammar.matcher import MaskArray
    from octavo.grammar.sources import JsonOptions
    from octavo.sampling_params import SamplingParams
    from octavo.structured_outputs import StructuredOutputsParams
    from octavo.tokenizer.tokenizer import Tokenizer

MAX_GRAMMARS = 64
MAX_SOURCE_CHARS = 1 << 20
"""Of all remembered grammars; what they take in memory grows with it."""

_Key = tuple[object, ...]
_stack_size = threading.Lock()
"""Held while it is changed, by the compiler of any model."""


class GrammarCompiler:
    """All grammars of one model.

    Args:
        vocab_size: width of the logits.
        eos_token_ids: every id that ends a text.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self.filler = MaskFiller()
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._vocabulary: LLTokenizer | None = None
        self._known: OrderedDict[_Key, tuple[CompiledGrammar, int]] = OrderedDict()
        """The latest used last, each with the length of its source."""
        self._num_chars = 0
        self._lock = threading.Lock()
        self._slot = threading.BoundedSemaphore(1)
        """Held by the one thread that compiles."""
        self._checker = GrammarChecker()

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Return a grammar that is ready to be followed. From any thread but the engine's.

        Raises: `RequestError` if it cannot be served, or takes too long to be compiled; `QueueFullError` if those
            before it do, or the system gives no thread or process for it.
        """
        from octavo.grammar.sources import canonical_source, json_options  # with all they need: only if somebody asks

        if self._vocabulary is None:
            with self._lock:
                self._vocabulary = self._vocabulary or self._get_ready()
        try:
            source = canonical_source(params)
        except ValueError as error:
            raise _refusal(params, str(error)) from None
        options = json_options(params)
        key = (params.kind, source, options)
        found = self._find(key)
        if found is not None:
            return found
        deadline = time.monotonic() + COMPILE_SECONDS
        had_to_wait = not self._slot.acquire(blocking=False)
        if had_to_wait and not self._slot.acquire(timeout=COMPILE_SECONDS):
            raise _too_busy()

        def find_or_compile() -> CompiledGrammar:
            grammar = self._find(key)
            if grammar is None:
                grammar = self._compile(params.kind, source, options, deadline - time.monotonic())
                self._remember(key, grammar, len(source))  # before the next one who wants it has the slot
            return grammar

        try:
            return _Compilation(find_or_compile, self._slot).wait(params, deadline - time.monotonic())
        except TimeoutError:
            if had_to_wait:
                raise _too_busy() from None
            raise _refusal(params, f"it takes more than {COMPILE_SECONDS:g} s to compile") from None

    def close(self) -> None:
        """End the worker process; one that is needed again is started again. Idempotent."""
        self._checker.close()

    def make_matcher(self, grammar: CompiledGrammar, params: SamplingParams) -> GrammarMatcher:
        """Return the state of one completion at its beginning."""
        ends = self._eos_token_ids if params.ignore_eos else self._eos_token_ids.union(params.stop_token_ids or ())
        return GrammarMatcher(
            grammar,
            ends=_bits(ends, self._vocab_size),
            held_back=None if params.ignore_eos else params.min_tokens,
            on_stale=self.filler.note,
        )

    def _get_ready(self) -> LLTokenizer:
        from octavo.grammar.vocabulary import load_vocabulary  # with all it needs: only if somebody asks

        vocabulary = load_vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)
        try:
            self._checker.start()
        except (ValueError, TimeoutError) as error:
            reason = str(error) or "the process that checks them does not start"
            raise QueueFullError(f"structured_outputs cannot be served now: {reason}; try again later.") from None
        return vocabulary

    def _find(self, key: _Key) -> CompiledGrammar | None:
        with self._lock:
            entry = self._known.get(key)
            if entry is None:
                return None
            self._known.move_to_end(key)
            return entry[0]

    def _remember(self, key: _Key, grammar: CompiledGrammar, num_chars: int) -> None:
        with self._lock:
            self._known[key] = (grammar, num_chars)
            self._num_chars += num_chars
            while len(self._known) > MAX_GRAMMARS or self._num_chars > MAX_SOURCE_CHARS:
                _, (_, dropped) = self._known.popitem(last=False)
                self._num_chars -= dropped

    def _compile(self, kind: str, source: str, options: JsonOptions, seconds: float) -> CompiledGrammar:
        from llguidance import LLMatcher

        assert self._vocabulary is not None, "loaded before the first grammar"
        checked = self._checker.check(kind, source, options, seconds=seconds)
        start = LLMatcher(self._vocabulary, checked, log_level=0, limits=library_limits())
        _check(start)
        compiled = time.thread_time()
        grammar = CompiledGrammar(start, self._vocab_size)
        _check(start)
        if not grammar.first_mask.any():
            raise ValueError("no text of this model's tokens matches it")
        if time.thread_time() - compiled > MASK_SECONDS:
            raise ValueError(f"it is too complex: the first mask takes more than {MASK_SECONDS:g} s")
        return grammar


class _Compilation:
    """Work on a thread of its own, which nobody waits for longer than agreed.

    Args:
        slot: held by the caller; free again as soon as the work has ended, or could not begin.

    Raises: `QueueFullError` if the system gives it no thread.
    """

    def __init__(self, work: Callable[[], CompiledGrammar], slot: threading.BoundedSemaphore) -> None:
        self._work = work
        self._slot = slot
        self._done = threading.Event()
        self._result: CompiledGrammar | Exception | None = None
        with _stack_size:  # the slot is free before the size is what it was
            usual = threading.stack_size(COMPILE_STACK_BYTES)  # of all threads that are started just now; no harm
            try:
                threading.Thread(target=self._run, name="octavo-grammar", daemon=True).start()
            except RuntimeError:
                slot.release()
                raise QueueFullError("no thread to compile a grammar can be started; try again later.") from None
            finally:
                threading.stack_size(usual)

    def wait(self, params: StructuredOutputsParams, seconds: float) -> CompiledGrammar:
        """Return what came of it.

        Raises: `RequestError` for a grammar that cannot be served; `QueueFullError`; TimeoutError.
        """
        if not self._done.wait(seconds):
            raise TimeoutError
        if isinstance(self._result, CompiledGrammar):
            return self._result
        if isinstance(self._result, (OctavoError, TimeoutError)):
            raise self._result
        raise _refusal(params, str(self._result))

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere priorities are of processes
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            self._result = self._work()
        except Exception as error:
            self._result = error
        finally:
            self._slot.release()
            self._done.set()


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(error_line(matcher.get_error()))


def _bits(token_ids: Iterable[int], vocab_size: int) -> MaskArray:
    bits = np.zeros(-(-vocab_size // 32), np.uint32)
    for token_id in token_ids:
        if token_id < vocab_size:
            bits[token_id >> 5] |= np.uint32(1 << (token_id & 31))
    return bits


def _too_busy() -> QueueFullError:
    """Return what is said of a grammar that others have left no time."""
    return QueueFullError(f"the grammars before it took more than {COMPILE_SECONDS:g} s to compile; try again.")


def _refusal(params: StructuredOutputsParams, reason: str) -> RequestError:
    if isinstance(params, FramedOutputs):
        subject = params.subject or params.parameter
        return RequestError(f"{subject} cannot be served: {reason}.", parameter=params.parameter)
    return RequestError(f"structured_outputs.{params.kind} cannot be served: {reason}.", parameter="structured_outputs")
