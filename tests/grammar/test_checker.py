from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from octavo.errors import QueueFullError
from octavo.grammar import checker as checker_module
from octavo.grammar.checker import GrammarChecker
from octavo.grammar.sources import JsonOptions

SLOW = json.dumps({"allOf": [{"type": "string", "pattern": f"a.*{index}"} for index in range(999)]})


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.close()


def check(checker: GrammarChecker, kind: str = "regex", source: str = "a+", seconds: float = 20.0) -> str:
    return checker.check(kind, source, JsonOptions(), seconds=seconds)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_grammar_comes_back_in_the_library_s_notation(checker: GrammarChecker) -> None:
    assert "a+" in check(checker)
    assert '"integer"' in check(checker, "json", '{"type": "integer"}')
    assert 'start: "a" | "b"' in check(checker, "choice", '["a", "b"]').replace('\\"', '"')


def test_one_process_does_all_jobs(checker: GrammarChecker) -> None:
    check(checker)
    first = checker._running[0].pid
    check(checker)
    with pytest.raises(ValueError, match="invalid regex"):
        check(checker, source="[")
    assert checker._running[0].pid == first


def test_a_process_that_somebody_has_ended_is_replaced(checker: GrammarChecker) -> None:
    check(checker)
    os.kill(checker._running[0].pid, signal.SIGTERM)  # which it ignores: its parent decides
    check(checker)
    process = checker._running[0]
    process.send_signal(signal.SIGABRT)
    process.wait()
    assert "a+" in check(checker)


def test_a_process_that_was_killed_for_another_s_sake_is_no_fault_of_the_grammar(checker: GrammarChecker) -> None:
    check(checker)
    process = checker._running[0]
    process.kill()  # as a system does that is out of memory
    process.wait()
    assert "a+" in check(checker)


def test_what_takes_too_much_processor_time_is_refused_and_harms_no_other(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker_module, "CHECK_CPU_SECONDS", 0.3)
    with pytest.raises(ValueError, match="takes more than"):
        check(checker, "json", SLOW)
    assert "a+" in check(checker)


def test_what_takes_too_long_is_refused(checker: GrammarChecker) -> None:
    check(checker)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        check(checker, "json", SLOW, seconds=0.2)
    assert time.monotonic() - started < 20


def test_a_grammar_that_overflows_the_stack_costs_a_process_and_an_error(checker: GrammarChecker) -> None:
    rules = "".join(f"r{index}: r{index + 1}\n" for index in range(30_000))
    with pytest.raises(ValueError, match=r"nested too deeply|takes more than"):  # whichever comes first
        check(checker, "grammar", f'start: r0\n{rules}r30000: "z"\n')
    assert "a+" in check(checker)


def test_a_system_that_gives_no_process_is_told(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(QueueFullError, match="no process to check grammars can be started"):
        check(checker)


def test_a_fault_is_told_also_if_no_process_can_follow_the_one_that_it_has_ended(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(checker)
    monkeypatch.setattr(checker_module, "CHECK_CPU_SECONDS", 0.3)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ValueError, match="takes more than"):
        check(checker, "json", SLOW)


def test_the_process_ends_with_its_owner() -> None:
    checker = GrammarChecker()
    check(checker)
    pid = checker._running[0].pid
    del checker
    assert not is_alive(pid)


def test_a_closed_checker_has_no_process_until_it_is_used_again() -> None:
    checker = GrammarChecker()
    check(checker)
    pid = checker._running[0].pid
    checker.close()
    checker.close()
    assert not is_alive(pid)
    assert "a+" in check(checker)
    checker.close()


def test_a_job_that_runs_when_the_checker_is_closed_is_not_begun_again() -> None:
    checker = GrammarChecker()
    check(checker)
    errors: list[ValueError] = []

    def run() -> None:
        try:
            check(checker, "json", SLOW, seconds=60.0)
        except ValueError as error:
            errors.append(error)

    job = threading.Thread(target=run)
    job.start()
    while not checker._lock.locked():
        time.sleep(0.001)
    checker.close()
    job.join(20)
    assert [str(error) for error in errors] == ["the engine was closed"]
