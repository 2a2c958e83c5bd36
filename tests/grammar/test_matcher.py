from __future__ import annotations

import threading
from typing import Any

import pytest
from face_fakes import EOS, ByteTokenizer
from grammar_helpers import VOCAB, allowed, give, make_compiler, make_matcher, random_output, texts
from llguidance import LLExecutor

from octavo import OctavoError
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.masks import MaskFiller
from octavo.grammar.matcher import fill_masks


def test_a_mask_allows_what_the_grammar_does_and_no_special_token(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"regex": '[{<]"?'})
    assert texts(matcher) == {b"{", b'{"', b"<"}
    give(matcher, "{")
    assert texts(matcher) == {b'"', b"<|end|>"}
    assert allowed(matcher)[-1] == EOS  # 266 spells the same text, and is no end


def test_ids_beyond_the_tokenizer_are_never_allowed(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"regex": "(.|\n)*"})
    assert EOS in allowed(matcher)
    assert max(allowed(matcher)) < 268 < VOCAB


def test_a_complete_grammar_allows_only_the_end(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"choice": ["yes", "no"]})
    give(matcher, "yes")
    assert allowed(matcher) == [EOS]
    assert matcher.append(EOS)
    assert matcher.failure is None


def test_the_end_is_allowed_where_the_text_may_end(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"regex": "ab?"})
    assert EOS not in allowed(matcher)
    give(matcher, "a")
    assert allowed(matcher) == [ord("b"), EOS]
    assert matcher.append(EOS)


def test_the_end_is_held_back_for_min_tokens_unless_nothing_else_is_left(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"regex": "a{1,4}"}, min_tokens=3)
    for _ in range(2):
        give(matcher, "a")
        assert allowed(matcher) == [ord("a")]
    give(matcher, "a")
    assert allowed(matcher) == [ord("a"), EOS]
    short = make_matcher(compiler, {"regex": "ab"}, min_tokens=9)
    give(short, "ab")
    assert allowed(short) == [EOS]


def test_min_tokens_hold_stop_tokens_back_too(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"regex": "[ab]*"}, min_tokens=1, stop_token_ids=[ord("b")])
    assert allowed(matcher) == [ord("a")]
    give(matcher, "a")
    assert allowed(matcher) == [ord("a"), ord("b"), EOS]


def test_with_ignore_eos_only_a_complete_grammar_ends(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"regex": "a{0,2}"}, ignore_eos=True)
    give(matcher, "a")
    assert allowed(matcher) == [ord("a")]
    give(matcher, "a")
    assert allowed(matcher) == [EOS]
    assert matcher.append(EOS)


def test_a_token_that_is_not_allowed_is_an_error(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"regex": "a"})
    with pytest.raises(OctavoError, match=r"cannot be followed any further: .*doesn't satisfy"):
        matcher.append(ord("b"))


def test_a_grammar_that_no_token_can_go_on_with_says_so() -> None:
    tokenizer = ByteTokenizer()
    tokenizer._bytes[ord("b")] = b"c"
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB, eos_token_ids={EOS})  # type: ignore[arg-type]
    matcher = make_matcher(compiler, {"regex": "ab"})
    give(matcher, "a")
    masks = compiler.filler.collect([None, matcher])
    assert masks is not None
    assert masks.failures.keys() == {1}


def test_a_grammar_that_becomes_too_complex_is_an_error(compiler: GrammarCompiler) -> None:
    matcher = make_matcher(compiler, {"grammar": 'start: (("a"{9999}){9999}){9999}'})
    with pytest.raises(OctavoError, match="cannot be followed any further: "):
        random_output(matcher, seed=0)


def test_completions_of_one_grammar_do_not_see_each_other(compiler: GrammarCompiler) -> None:
    first, second = (make_matcher(compiler, {"choice": ["ab", "cd"]}) for _ in range(2))
    give(first, "a")
    give(second, "cd")
    assert (allowed(first), allowed(second)) == ([ord("b")], [EOS])


def test_masks_are_the_same_from_any_thread() -> None:
    compiler = make_compiler()
    text = '{"a":[1,2,{"b":null}],"c":"some text"}'
    matcher, other = (make_matcher(compiler, {"json_object": True}) for _ in range(2))
    other._on_stale = lambda _: None
    for byte in text.encode():
        for entry in (matcher, other):
            assert not entry.append(byte)
        filled = threading.Thread(target=matcher.mask)
        filled.start()
        assert allowed(matcher) == allowed(other)
        filled.join()


def test_masks_filled_together_are_those_filled_alone(compiler: GrammarCompiler) -> None:
    forms: list[dict[str, Any]] = [{"json_object": True}, {"regex": r'\{"[ab]*"'}, {"choice": ['{"a', '{"b']}]
    together, alone = ([make_matcher(compiler, form, min_tokens=2) for form in forms] for _ in range(2))
    for matcher in [*together, *alone]:
        matcher._on_stale = lambda _: None
    for byte in b'{"a':
        for matcher in [*together, *alone]:
            matcher.append(byte)
        fill_masks(together, LLExecutor(2))
        assert all(matcher._mask is not None for matcher in together)
        assert [allowed(matcher) for matcher in together] == [allowed(matcher) for matcher in alone]


def test_only_rows_with_a_grammar_get_a_mask(compiler: GrammarCompiler) -> None:
    filler = MaskFiller()
    assert filler.collect([None, None]) is None
    matchers = [make_matcher(compiler, {"regex": regex}) for regex in ("a", "b")]
    masks = filler.collect([None, matchers[0], None, matchers[1]])
    assert masks is not None
    assert (masks.rows.tolist(), masks.failures) == ([1, 3], {})
    assert [row.tolist() for row in masks.bits] == [matcher.mask().tolist() for matcher in matchers]


def test_the_filling_thread_ends_with_its_owner() -> None:
    compiler = make_compiler()
    give(make_matcher(compiler, {"regex": "aa"}), "a")
    names = [thread.name for thread in threading.enumerate()]
    assert "octavo-masks" in names
    threads = [thread for thread in threading.enumerate() if thread.name == "octavo-masks"]
    del compiler
    for thread in threads[-1:]:
        thread.join(5)
        assert not thread.is_alive()
