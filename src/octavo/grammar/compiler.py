"""Compiles grammars, off the engine's thread, within limits on time and memory, and remembers the latest of them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import RequestError
from octavo.grammar.masks import MaskFiller
from octavo.grammar.matcher import CompiledGrammar, GrammarMatcher, error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from octavo.grammar.matcher import MaskArray
    from octavo.sampling_params import SamplingParams
    from octavo.structured_outputs import StructuredOutputsParams
    from octavo.tokenizer.tokenizer import Tokenizer

COMPILE_SECONDS = 4.0
"""Longest that a caller waits for a grammar, for others' to be compiled included."""
MASK_SECONDS = 0.2
"""Processor time that the first mask may take: later ones are filled while everybody's step runs."""
MAX_GRAMMARS = 64
MAX_SOURCE_CHARS = 1 << 20
"""Of all remembered grammars; what they take in memory grows with it."""
_NICENESS = 5
"""Of threads that compile: steps go first."""

_Key = tuple[object, ...]


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

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Return a grammar that is ready to be followed. From any thread but the engine's.

        Raises: `RequestError` if it cannot be served, or takes too long to be compiled.
        """
        from octavo.grammar.sources import canonical_source  # with all it needs: only if somebody asks
        from octavo.grammar.vocabulary import load_vocabulary

        if self._vocabulary is None:
            with self._lock:
                self._vocabulary = self._vocabulary or load_vocabulary(
                    self._tokenizer, self._vocab_size, self._eos_token_ids
                )
        try:
            source = canonical_source(params)
        except ValueError as error:
            raise _refusal(params.kind, str(error)) from None
        options = (params.disable_any_whitespace, params.disable_additional_properties, params.whitespace_pattern)
        key = (params.kind, source, *options)
        found = self._find(key)
        if found is not None:
            return found
        deadline = time.monotonic() + COMPILE_SECONDS
        if not self._slot.acquire(timeout=COMPILE_SECONDS):
            raise _refusal(
                params.kind, f"the grammars before it took more than {COMPILE_SECONDS:g} s to compile; try again"
            )

        def find_or_compile() -> CompiledGrammar:
            grammar = self._find(key)
            if grammar is None:
                grammar = self._compile(params, source)
                self._remember(key, grammar, len(source))  # before the next one who wants it has the slot
            return grammar

        return _Compilation(find_or_compile, self._slot).wait(params.kind, deadline - time.monotonic())

    def make_matcher(self, grammar: CompiledGrammar, params: SamplingParams) -> GrammarMatcher:
        """Return the state of one completion at its beginning."""
        ends = self._eos_token_ids if params.ignore_eos else self._eos_token_ids.union(params.stop_token_ids or ())
        return GrammarMatcher(
            grammar,
            ends=_bits(ends, self._vocab_size),
            held_back=None if params.ignore_eos else params.min_tokens,
            on_stale=self.filler.note,
        )

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

    def _compile(self, params: StructuredOutputsParams, source: str) -> CompiledGrammar:
        from llguidance import LLMatcher

        from octavo.grammar.sources import library_grammar

        assert self._vocabulary is not None, "loaded before the first grammar"
        started = time.thread_time()
        start = LLMatcher(self._vocabulary, library_grammar(params, source), log_level=0, limits=_limits())
        _check(start)
        compiled = time.thread_time()
        grammar = CompiledGrammar(start, self._vocab_size)
        _check(start)
        if not grammar.first_mask.any():
            raise ValueError("no text of this model's tokens matches it")
        if time.thread_time() - compiled > MASK_SECONDS:
            raise ValueError(f"it is too complex: the first mask takes more than {MASK_SECONDS:g} s")
        if time.thread_time() - started > COMPILE_SECONDS:
            raise ValueError(f"it takes more than {COMPILE_SECONDS:g} s to compile")
        return grammar


class _Compilation:
    """Work on a thread of its own, which nobody waits for longer than agreed."""

    def __init__(self, work: Callable[[], CompiledGrammar], slot: threading.BoundedSemaphore) -> None:
        self._work = work
        self._slot = slot
        self._done = threading.Event()
        self._result: CompiledGrammar | Exception | None = None
        threading.Thread(target=self._run, name="octavo-grammar", daemon=True).start()

    def wait(self, kind: str, seconds: float) -> CompiledGrammar:
        """Return what came of it. Raises: `RequestError` for a grammar that cannot be served, or takes too long."""
        if not self._done.wait(seconds):
            raise _refusal(kind, f"it takes more than {COMPILE_SECONDS:g} s to compile")
        if isinstance(self._result, CompiledGrammar):
            return self._result
        if isinstance(self._result, RequestError):
            raise self._result
        raise _refusal(kind, str(self._result))

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere priorities are of processes
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            self._result = self._work()
        except Exception as error:
            self._result = error
        finally:
            self._slot.release()
            self._done.set()


def _limits() -> LLParserLimits:
    """Bound what one mask costs: about 7 ms of lexing, 3 ms of parsing; and memory, about 2 kB per lexer state."""
    from llguidance import LLParserLimits

    return LLParserLimits(step_lexer_fuel=100_000, step_max_items=50_000, max_lexer_states=50_000, verbose_errors=False)


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(error_text(matcher))


def _bits(token_ids: Iterable[int], vocab_size: int) -> MaskArray:
    bits = np.zeros(-(-vocab_size // 32), np.uint32)
    for token_id in token_ids:
        if token_id < vocab_size:
            bits[token_id >> 5] |= np.uint32(1 << (token_id & 31))
    return bits


def _refusal(kind: str, reason: str) -> RequestError:
    return RequestError(f"structured_outputs.{kind} cannot be served: {reason}.", parameter="structured_outputs")
