from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.options import ServerOptions
from octavo.server.protocol.errors import ApiError
from octavo.server.request_body import check_structure, is_nested_deeper, num_parts, without_strings

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab[]{}"\\\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a[]{}"\\'), inner, max_size=3),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(1, 8))
def test_the_depth_of_any_json_is_told_from_its_brackets(value: Any, limit: int) -> None:
    assert is_nested_deeper(without_strings(json.dumps(value).encode()), limit) == (depth(value) > limit)


def parts(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    own = isinstance(value, (dict, list)) + len(value if isinstance(value, dict) else ())
    return own + sum(map(parts, inner))


@given(VALUES)
def test_lists_objects_and_keys_are_counted_without_those_in_texts(value: Any) -> None:
    assert num_parts(without_strings(json.dumps(value).encode())) == parts(value)


@pytest.mark.parametrize(
    "text",
    ["[" + "[]," * 20 + "[]]", "[" + "{}," * 20 + "{}]", json.dumps(dict.fromkeys(map(str, range(20))))],
    ids=["lists", "objects", "keys"],
)
def test_more_parts_than_the_server_reads_are_refused(text: str) -> None:
    check_structure(text.encode(), max_depth=2, max_parts=22)
    check_structure(json.dumps(["[]{}:" * 100]).encode(), max_depth=2, max_parts=22)
    with pytest.raises(ApiError, match="more than 20 lists, objects and keys; the server's option max_json_parts"):
        check_structure(text.encode(), max_depth=2, max_parts=20)


@pytest.mark.parametrize("value", ["1", '"a"', "null"], ids=["numbers", "texts", "nulls"])
def test_values_of_long_lists_are_counted_four_to_a_part(value: str) -> None:
    long = "[" + f"{value}," * 84 + f"{value}]"
    check_structure(long.encode(), max_depth=2, max_parts=21)
    check_structure(json.dumps(["," * 1000]).encode(), max_depth=2, max_parts=21)
    with pytest.raises(ApiError, match="more than 80 values; the server's option max_json_parts, 4 values each"):
        check_structure(long.encode(), max_depth=2, max_parts=20)


def test_a_prompt_of_a_million_ids_is_read_by_default() -> None:
    options = ServerOptions()
    prompt = b'{"prompt": [' + b"1," * 1_000_000 + b"1]}"
    check_structure(prompt, max_depth=options.max_json_depth, max_parts=options.max_json_parts)


@pytest.mark.parametrize("text", ["[" * 200, "[" * 200 + "]" * 200, '{"a":' * 200 + "1" + "}" * 200, "[1,[2,{" * 80])
def test_deep_texts_are_refused_whole_or_not(text: str) -> None:
    assert is_nested_deeper(without_strings(text.encode()), 64)


@pytest.mark.parametrize(
    "text", ["]" * 200, '"' + "[" * 200, "[]" * 200, "[" * 64 + "]" * 64, "]" * 100 + "[" * 30, ""]
)
def test_what_is_flat_or_no_json_is_left_to_the_parser(text: str) -> None:
    assert not is_nested_deeper(without_strings(text.encode()), 64)


@pytest.mark.parametrize(
    "text",
    ['"' + r"\"" * 4_000_000, "[]," * 3_000_000, "[[],[[]]]," * 1_000_000, "[" * 8_000_000, r"\\" * 4_000_000],
    ids=["escapes", "empty lists", "small lists", "open", "backslashes"],
)
def test_large_texts_are_measured_fast(text: str) -> None:
    body = text.encode()
    started = time.process_time()
    is_nested_deeper(without_strings(b"[" * 65 + b"]" * 65 + body), 64)
    is_nested_deeper(without_strings(b'{"a":[[[[' * 10 + body), 64)
    assert time.process_time() - started < 5  # a slip into quadratic time would take hours
