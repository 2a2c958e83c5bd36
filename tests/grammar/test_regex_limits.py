from __future__ import annotations

import pytest

from octavo.grammar.lark_limits import check_terminals
from octavo.grammar.regex_limits import MAX_WRITTEN_OUT, check_regex, written_out_size


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"\d{3}-\d{4}", 8),
        ("a*b+c?", 3),
        ("(ab){3}c", 7),
        ("((ab){3}c){10}", 70),
        ("(?:ab){2,5}", 10),
        ("[a-z]{8}", 8),
        (r"[^]\]a-z]{8}", 8),
        ("[[:alpha:]_]{4}", 4),
        (r"\p{Greek}{4}\x{41}", 5),
        ("a{,}", 4),
        ("a|bc|d{4}", 9),
        ("a??", 1),
        ("(a", 1),
    ],
)
def test_repetitions_are_counted_as_if_written_out(pattern: str, size: int) -> None:
    assert written_out_size(pattern) == size


@pytest.mark.parametrize("pattern", ["foo**", "a+*", "a{2}{3}", "(a|b)*+", "a?*b**"])
def test_a_repetition_of_a_repetition_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="repeats a repetition"):
        check_regex(pattern)


@pytest.mark.parametrize("pattern", ["a{1000000}", "(.{1,999}){999}", "((a{1,100}){1,100}){1,100}", "a" * 8_001])
def test_what_is_too_long_when_written_out_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_WRITTEN_OUT}"):
        check_regex(pattern)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: T\nT: ("a"{9999}){999}',
        'start: "x" T\nT: U~200..300\nU: "a"{999}',
        "start: /a{1000000}/",
        "start: T\nT: /b/ /a{300}/{300}",
        "start: T\nT[lazy]: /a{1000000}/",
    ],
)
def test_terminals_that_are_too_long_are_refused(grammar: str) -> None:
    with pytest.raises(ValueError, match="written out"):
        check_terminals(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: item{1,100000}\nitem: WORD ","\nWORD: /[a-z]{1,200}/',
        'start: "a{1000000}" // {1000000}\n',
        'start: UUID\nHEX: /[0-9a-f]/\nUUID: HEX{8} ("-" HEX{4}){3} "-" HEX{12}',
        "start: T\nT: T",
        "",
    ],
)
def test_other_grammars_pass(grammar: str) -> None:
    check_terminals(grammar)
