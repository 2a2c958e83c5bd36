from __future__ import annotations

import builtins
from typing import Any

import pytest
from face_fakes import EOS, IM_START, ByteTokenizer
from grammar_helpers import LONG_TOKENS, VOCAB, allowed, give, make_matcher

from octavo import RequestError
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.vocabulary import TokenTable, load_vocabulary


class PrefixingTokenizer(ByteTokenizer):
    """Puts a space before each text, as some SentencePiece models do, and reads special tokens in it."""

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        encoded = super().encode_batch([f" {text}" for text in texts], add_special_tokens)
        return [[EOS] if b"<|end|>" in bytes(ids) else ids for ids in encoded]


class CountingTokenizer(ByteTokenizer):
    """Knows the length of the longest text that it has encoded."""

    longest = 0

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        self.longest = max(self.longest, *map(len, texts))
        return super().encode_batch(texts, add_special_tokens)


@pytest.mark.parametrize("text", ["", "ab", '"name": "é"', "<|end|>", "a<|start|>"])
@pytest.mark.parametrize("tokenizer", [ByteTokenizer, PrefixingTokenizer])
def test_a_text_becomes_ordinary_tokens_of_exactly_its_bytes(tokenizer: type[ByteTokenizer], text: str) -> None:
    table = TokenTable(tokenizer(*LONG_TOKENS), VOCAB, EOS)  # type: ignore[arg-type]
    token_ids = table(text)
    assert b"".join(table.tokens[token_id] for token_id in token_ids) == text.encode()
    assert not {EOS, IM_START} & set(token_ids)


def test_of_a_long_forced_text_only_the_beginning_becomes_tokens() -> None:
    tokenizer = CountingTokenizer()
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB, eos_token_ids={EOS})  # type: ignore[arg-type]
    text = "".join(chr(ord("a") + index * index % 26) for index in range(4000))
    matcher = make_matcher(compiler, {"choice": [text]})
    tokenizer.longest = 0
    for char in text[:20]:
        assert allowed(matcher) == [ord(char)]
        give(matcher, char)
    assert 0 < tokenizer.longest <= 256


def test_a_forced_text_that_looks_special_is_spelled_out() -> None:
    compiler = GrammarCompiler(PrefixingTokenizer(), vocab_size=VOCAB, eos_token_ids={EOS})  # type: ignore[arg-type]
    matcher = make_matcher(compiler, {"choice": ["<|end|>"]})
    assert allowed(matcher) == [ord("<")]
    give(matcher, "<|end|>")
    assert allowed(matcher) == [EOS]


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def import_without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "llguidance":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without)
    with pytest.raises(RequestError, match=r"pip install 'octavo\[structured\]'"):
        load_vocabulary(ByteTokenizer(), VOCAB, {EOS})  # type: ignore[arg-type]


def test_a_model_whose_texts_cannot_end_has_no_structured_outputs() -> None:
    with pytest.raises(RequestError, match="no end-of-text token"):
        load_vocabulary(ByteTokenizer(), VOCAB, {VOCAB})  # type: ignore[arg-type]
