"""A vocabulary of bytes and a few longer tokens, and a model that knows nothing: it picks among the allowed tokens."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from face_fakes import EOS, ByteTokenizer

from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.matcher import CompiledGrammar, GrammarMatcher
from octavo.sampling_params import SamplingParams
from octavo.structured_outputs import StructuredOutputsParams

LONG_TOKENS = ('{"', '":', '", "', "},", "]}", "true", "null", " 1", "é", "<|end|>")
VOCAB = 300
"""Wider than the tokenizer, and no multiple of 32, as logits may be."""
_CLOSERS = frozenset(b'"]}:,0e')
_CLOSE = 0.7


def make_compiler() -> GrammarCompiler:
    return GrammarCompiler(ByteTokenizer(*LONG_TOKENS), vocab_size=VOCAB, eos_token_ids={EOS})  # type: ignore[arg-type]


def compile_grammar(compiler: GrammarCompiler, **form: Any) -> CompiledGrammar:
    return compiler.compile(StructuredOutputsParams(**form))


def make_matcher(compiler: GrammarCompiler, form: dict[str, Any], **params: Any) -> GrammarMatcher:
    sampling = SamplingParams(structured_outputs=form, **params)
    assert isinstance(sampling.structured_outputs, StructuredOutputsParams)
    sampling.eos_token_ids = frozenset({EOS})
    return compiler.make_matcher(compiler.compile(sampling.structured_outputs), sampling)


def allowed(matcher: GrammarMatcher) -> list[int]:
    """Ids that the mask of the next token allows."""
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return [int(token_id) for token_id in np.flatnonzero(bits)]


def texts(matcher: GrammarMatcher) -> set[bytes]:
    """Tokens that may come next."""
    tokenizer = ByteTokenizer(*LONG_TOKENS)
    return {tokenizer.id_to_bytes(token_id) for token_id in allowed(matcher)}


def give(matcher: GrammarMatcher, text: str | bytes) -> None:
    """Append a text byte by byte; every byte must be allowed."""
    for token_id in text.encode() if isinstance(text, str) else text:
        assert token_id in allowed(matcher), f"{bytes([token_id])!r} of {text!r} is not allowed"
        assert not matcher.append(token_id)


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the masks let a text through, up to its end."""
    state = grammar.copy_start()
    return state.consume_tokens(list(text.encode())) and state.is_accepting()


def random_output(matcher: GrammarMatcher, seed: int, max_tokens: int = 4_000) -> bytes | None:
    """Follow a grammar at random to its end; None if that is too far."""
    tokenizer = ByteTokenizer(*LONG_TOKENS)
    rng = random.Random(seed)
    output = b""
    for _ in range(max_tokens):
        choices = allowed(matcher)
        assert choices, matcher.failure
        closers = [token_id for token_id in choices if token_id == EOS or token_id in _CLOSERS]
        token_id = rng.choice(closers if closers and rng.random() < _CLOSE else choices)
        if matcher.append(token_id):
            return output
        output += tokenizer.id_to_bytes(token_id)
    return None
