from __future__ import annotations

import itertools
import random

import pytest
from face_fakes import EOS, ByteTokenizer

from octavo.frontend.detokenizer import Detokenizer, _Pattern
from octavo.sampling_params import SamplingParams


def make_detokenizer(*tokens: str, **params: object) -> Detokenizer:
    return Detokenizer(ByteTokenizer(*tokens), SamplingParams(**params))  # type: ignore[arg-type]


def shown_pieces(detokenizer: Detokenizer, token_ids: list[int]) -> tuple[list[str], str | None]:
    """What a reader of the stream sees after each token, and the stop string."""
    pieces, shown, stop = [], 0, None
    for token_id in token_ids:
        stop = detokenizer.append(token_id)
        end = len(detokenizer.text) if stop else detokenizer.num_shown
        pieces.append(detokenizer.text[shown:end])
        shown = max(shown, end)
        if stop:
            break
    return pieces, stop


def test_text_of_every_split_of_characters_is_exact() -> None:
    text = "🦙 ďábelské 你好 👩‍👩‍👧"
    pieces, _ = shown_pieces(make_detokenizer(), list(text.encode()))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_not_text_become_replacement_characters() -> None:
    detokenizer = make_detokenizer()
    detokenizer.extend([0x61, 0xFF, 0xE4, 0x62])
    assert detokenizer.text == b"a\xff\xe4b".decode("utf-8", "replace")


def test_an_incomplete_character_at_the_end_is_not_shown() -> None:
    detokenizer = make_detokenizer()
    detokenizer.extend([*b"ab", 0xF0, 0x9F])
    assert detokenizer.text == "ab"


def test_one_by_one_and_all_at_once_give_the_same_text() -> None:
    token_ids = [*"naïve 🦙".encode(), EOS, *b"x"]
    one, all_at_once = make_detokenizer(), make_detokenizer()
    for token_id in token_ids:
        one.append(token_id)
    all_at_once.extend(token_ids)
    assert one.text == all_at_once.text == "naïve 🦙x"


def test_special_tokens_are_shown_on_request() -> None:
    detokenizer = make_detokenizer(skip_special_tokens=False)
    detokenizer.extend([97, EOS])
    assert detokenizer.text == "a<|end|>"


def test_no_piece_shows_a_prefix_of_the_stop_string() -> None:
    pieces, stop = shown_pieces(make_detokenizer(stop="DEFGHIJ"), list(b"ABCDEFGHIJKL"))
    assert stop == "DEFGHIJ"
    assert "".join(pieces) == "ABC"


def test_held_text_is_shown_when_it_turns_out_not_to_stop() -> None:
    pieces, stop = shown_pieces(make_detokenizer(stop="DEFX"), list(b"ABCDEFGH"))
    assert stop is None
    assert pieces == ["A", "B", "C", "", "", "", "DEFG", "H"]


@pytest.mark.parametrize(
    ("stops", "tokens", "expected", "text"),
    [
        (["ab", "b"], ["xab"], "ab", "x"),
        (["b", "ab"], ["xab"], "b", "xa"),
        (["abc", "b"], ["xabcd"], "b", "xa"),
        (["abc", "b"], ["xa", "bc"], "b", "xa"),
    ],
    ids=["same-end-list-order", "same-end-list-order-reversed", "earlier-end-in-one-token", "earlier-end-over-tokens"],
)
def test_the_stop_string_that_ends_first_wins_then_list_order(
    stops: list[str], tokens: list[str], expected: str, text: str
) -> None:
    detokenizer = make_detokenizer(*tokens, stop=stops)
    assert detokenizer.extend(range(258, 258 + len(tokens))) == expected
    assert detokenizer.text == text


@pytest.mark.parametrize(("include", "text"), [(False, " or"), (True, " organi")], ids=["cut", "kept"])
def test_a_stop_string_inside_a_token_cuts_at_its_character(include: bool, text: str) -> None:
    detokenizer = make_detokenizer(" organization", stop="gani", include_stop_str_in_output=include)
    assert detokenizer.append(258) == "gani"
    assert detokenizer.text == text


def test_an_included_stop_string_is_not_held_back() -> None:
    pieces, _ = shown_pieces(make_detokenizer(stop="CD", include_stop_str_in_output=True), list(b"ABCDE"))
    assert pieces == ["A", "B", "C", "D"]


def test_stop_strings_within_min_tokens_do_not_count() -> None:
    detokenizer = make_detokenizer(stop="b", min_tokens=3)
    assert [detokenizer.append(token_id) for token_id in b"abbab"] == [None, None, None, None, "b"]
    assert detokenizer.text == "abba"


def test_a_huge_stop_string_costs_only_what_was_matched() -> None:
    pattern = _Pattern("ab" * 500_000)
    assert pattern.feed("abab", True) is None
    assert len(pattern._fail) == 4


def test_matching_agrees_with_a_plain_search_on_random_texts() -> None:
    rng = random.Random(0)
    for _ in range(2_000):
        text = "".join(rng.choices("ab", k=rng.randint(1, 14)))
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 3))]
        cuts = sorted(rng.sample(range(len(text) + 1), k=min(2, len(text))))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)]) if a < b]
        detokenizer = make_detokenizer(*pieces, stop=stops)
        found = detokenizer.extend(range(258, 258 + len(pieces)))
        ends = [(text.index(stop) + len(stop), order) for order, stop in enumerate(stops) if stop in text]
        assert found == (stops[min(ends)[1]] if ends else None)
        if ends:
            assert detokenizer.text == text[: min(ends)[0] - len(stops[min(ends)[1]])]
