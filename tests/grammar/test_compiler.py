from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from grammar_helpers import accepts, compile_grammar, make_compiler, make_matcher, random_output
from hostile_forms import REFUSED, SERVED

from octavo import RequestError
from octavo.errors import QueueFullError
from octavo.grammar import compiler as compiler_module
from octavo.grammar.compiler import MAX_GRAMMARS, GrammarCompiler

SLOWEST_SECONDS = 5.0


@pytest.mark.parametrize("form", REFUSED.values(), ids=REFUSED.keys())
def test_hostile_forms_are_refused_in_time(compiler: GrammarCompiler, form: dict[str, Any]) -> None:
    started = time.monotonic()
    with pytest.raises(RequestError) as raised:
        compile_grammar(compiler, **form)
    assert raised.value.parameter == "structured_outputs"
    assert len(str(raised.value)) < 1000
    assert time.monotonic() - started < SLOWEST_SECONDS


@pytest.mark.parametrize("form", SERVED.values(), ids=SERVED.keys())
def test_forms_that_only_look_dangerous_are_served(compiler: GrammarCompiler, form: dict[str, Any]) -> None:
    assert compile_grammar(compiler, **form).first_mask.any()


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ({"regex": "^[a-c]+$"}, ["abc"], ["abd", ""]),
        ({"choice": ["a", "ab", 'with "quotes" \\ and é\n/']}, ["a", "ab", 'with "quotes" \\ and é\n/'], ["b", "abc"]),
        ({"grammar": 'root ::= "a" b*\nb ::= [0-9]'}, ["a", "a12"], ["b", "ab"]),
        ({"grammar": 'start: "a" B*\nB: /[0-9]/'}, ["a", "a12"], ["b", "ab"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1"]),
        ({"json": '{"type": "integer"}'}, ["5"], ["5.5", '"5"']),
        ({"json": True}, ["5", "[{}]"], ["a"]),
        ({"json": {"type": "array"}, "disable_any_whitespace": True}, ["[1,2]"], ["[1, 2]"]),
        ({"json": {"type": "array"}, "whitespace_pattern": " ?"}, ["[1, 2]", "[1,2]"], ["[1,  2]"]),
        (
            {"json": {"properties": {"a": {}}, "type": "object"}, "disable_additional_properties": True},
            ['{"a": 1}', "{}"],
            ['{"b": 1}'],
        ),
    ],
    ids=str,
)
def test_each_kind_accepts_what_it_should(
    compiler: GrammarCompiler, form: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    grammar = compile_grammar(compiler, **form)
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_a_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    first = compile_grammar(compiler, json={"type": "integer"})
    assert compile_grammar(compiler, json='{"type": "integer"}') is first
    assert compile_grammar(compiler, json={"type": "integer"}, disable_any_whitespace=True) is not first


def test_the_oldest_grammar_is_forgotten_first() -> None:
    compiler = make_compiler()
    grammars = [compile_grammar(compiler, regex=f"a{index}") for index in range(MAX_GRAMMARS)]
    assert compile_grammar(compiler, regex="a0") is grammars[0]
    compile_grammar(compiler, regex="b")
    assert compile_grammar(compiler, regex="a0") is grammars[0]
    assert compile_grammar(compiler, regex="a1") is not grammars[1]


def test_long_sources_count_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_SOURCE_CHARS", 1000)
    compiler = make_compiler()
    short = compile_grammar(compiler, regex="a")
    compile_grammar(compiler, regex="b" * 600)
    assert compile_grammar(compiler, regex="a") is short
    compile_grammar(compiler, regex="c" * 600)
    assert compiler._num_chars == 601
    assert compile_grammar(compiler, regex="a") is short


def test_many_threads_may_ask_at_once() -> None:
    compiler = make_compiler()
    usual = threading.stack_size()
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(compile_grammar(compiler, json={"type": "object"})))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert threading.stack_size() == usual


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarCompiler]:
    """A compiler whose library hangs until the test ends."""
    hold = threading.Event()
    compiler = make_compiler()
    compile_grammar(compiler, regex="known")
    monkeypatch.setattr(compiler_module, "COMPILE_SECONDS", 0.2)
    monkeypatch.setattr(compiler, "_compile", lambda *_: hold.wait())
    yield compiler
    hold.set()


def test_nobody_waits_longer_than_agreed_for_a_grammar(stuck: GrammarCompiler) -> None:
    with pytest.raises(RequestError, match="takes more than"):
        compile_grammar(stuck, regex="a")
    with pytest.raises(QueueFullError, match="before it took more than"):
        compile_grammar(stuck, regex="b")
    assert compile_grammar(stuck, regex="known").first_mask.any()


def test_who_had_to_wait_for_others_and_was_left_too_little_time_may_try_again(stuck: GrammarCompiler) -> None:
    stuck._slot.acquire()
    threading.Timer(0.02, stuck._slot.release).start()
    with pytest.raises(QueueFullError, match="before it took more than"):
        compile_grammar(stuck, regex="a")


@pytest.mark.parametrize("name", ["octavo-grammar", "Thread-"], ids=["compiler's", "checker's"])
def test_a_system_that_gives_no_thread_costs_one_request_and_no_slot(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    compiler = make_compiler()
    compile_grammar(compiler, regex="known")
    usual = threading.stack_size()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(QueueFullError, match="no thread to"):
            compile_grammar(compiler, regex="a")
    assert threading.stack_size() == usual
    assert compile_grammar(compiler, regex="a").first_mask.any()


def test_a_system_that_gives_no_process_may_give_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = make_compiler()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(QueueFullError, match="no process"):
            compile_grammar(compiler, regex="a")
    assert compile_grammar(compiler, regex="a").first_mask.any()


@pytest.mark.slow
def test_five_thousand_schemas_leave_memory_flat() -> None:
    compiler = make_compiler()
    sizes = []
    for index in range(7000):
        schema = {"type": "object", "properties": {f"field{index}": {"type": "string"}}, "required": [f"field{index}"]}
        random_output(make_matcher(compiler, {"json": schema}, min_tokens=1), index, max_tokens=20)
        if index % 500 == 499:
            (worker,) = compiler._checker._running
            sizes.append(_memory_bytes() + _memory_bytes(worker.pid))
    warm, last = sizes[3:7], sizes[-4:]  # what keeps the latest of everything is full after 2,000
    assert min(last) - min(warm) < 6 << 20  # 1.5 kB for each of 4,000; the least, because garbage comes and goes


def _memory_bytes(process: int | str = "self") -> int:
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * 4096
