from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from face_fakes import EOS, make_engine

from octavo import SamplingParams
from octavo.frontend.llm_engine import LLMEngine
from octavo.observe.event_log import EventLog, RecordedEvent
from octavo.observe.events import BlockAllocated, RequestAdmitted, StepFinished, StepPlanned
from octavo.observe.trace import ENGINE, SEATS, chrome_trace


def check_format(trace: dict[str, Any]) -> None:
    """The rules of the trace event format, for the phases that we write."""
    json.dumps(trace, allow_nan=False)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    open_names: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    last: defaultdict[tuple[int, int], float] = defaultdict(float)
    named: set[tuple[int, int]] = set()
    for entry in trace["traceEvents"]:
        assert entry["ph"] in "BEiCM"
        assert isinstance(entry["name"], str)
        assert isinstance(entry["pid"], int)
        assert isinstance(entry["tid"], int)
        assert entry["ts"] >= 0
        row = (entry["pid"], entry["tid"])
        if entry["ph"] == "M":
            assert entry["name"] in ("process_name", "thread_name")
            assert isinstance(entry["args"]["name"], str)
            named.add(row)
        elif entry["ph"] == "C":
            assert entry["args"]
            assert all(isinstance(value, (int, float)) for value in entry["args"].values())
        elif entry["ph"] == "i":
            assert entry["s"] in "gpt"
        else:
            assert entry["ts"] >= last[row], "what begins and ends in a row comes in order of time"
            last[row] = entry["ts"]
            assert row in named
            if entry["ph"] == "B":
                open_names[row].append(entry["name"])
            else:
                assert open_names[row].pop() == entry["name"]
    assert not any(open_names.values()), "all that begins ends"


def next_token(ids: list[int], prompt_len: int) -> int:
    """Twelve tokens, then the end."""
    return EOS if len(ids) - prompt_len == 12 else 65 + len(ids) % 26


def run(engine: LLMEngine, *prompts: str, n: int = 1) -> None:
    params = SamplingParams(temperature=1.0 if n > 1 else 0.0, max_tokens=20, n=n)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished_requests():
        engine.step()


def trace_of(*prompts: str, n: int = 1, **options: Any) -> dict[str, Any]:
    engine, _ = make_engine(next_token, **options)
    run(engine, *prompts, n=n)
    engine.close()
    return chrome_trace(engine.events())


def entries(trace: dict[str, Any], phase: str, process: int) -> list[dict[str, Any]]:
    return [entry for entry in trace["traceEvents"] if (entry["ph"], entry["pid"]) == (phase, process)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"n": 3}, id="forks"),
        pytest.param({"max_num_seqs": 1}, id="queue"),
        pytest.param({"num_blocks": 14}, id="preemption"),
    ],
)
def test_a_trace_keeps_the_rules_of_the_format(options: dict[str, Any]) -> None:
    check_format(trace_of("x" * 40, "y" * 60, "z" * 60, **options))


def test_a_request_is_a_row_with_its_prefill_and_its_decodes() -> None:
    trace = trace_of("hello")
    assert [entry["name"] for entry in entries(trace, "B", SEATS)] == ["request 0", "prefill 5", *["decode"] * 12]
    assert [entry["args"]["token_id"] for entry in entries(trace, "B", SEATS)[1:4]] == [70, 71, 72]


def test_a_step_has_its_four_phases_one_after_the_other() -> None:
    first = entries(trace_of("hello"), "B", ENGINE)[:5]
    assert [entry["name"] for entry in first] == ["step 1", "schedule", "forward", "sample", "output"]


def test_a_preempted_request_leaves_its_seat_and_comes_back() -> None:
    trace = trace_of("x" * 60, "y" * 60, num_blocks=9)
    instants = [entry["name"] for entry in entries(trace, "i", ENGINE)]
    assert "preempted" in instants
    assert len([entry for entry in entries(trace, "B", SEATS) if entry["name"].startswith("request")]) == 3


def test_a_log_that_forgot_the_beginning_still_makes_a_trace() -> None:
    engine, _ = make_engine(next_token)
    run(engine, "hello", "world", n=2)
    recorded = engine.events()
    engine.close()
    for start in range(0, len(recorded), 7):
        check_format(chrome_trace(recorded[start:]))
        check_format(chrome_trace(recorded[: start + 1]))


def test_a_step_that_failed_is_an_instant_and_its_requests_come_back() -> None:
    engine, executor = make_engine(next_token)
    executor.broken_request = "1#"
    run(engine, "hello", "world", "again")
    engine.close()
    trace = chrome_trace(engine.events())
    check_format(trace)
    assert "step failed" in [entry["name"] for entry in entries(trace, "i", ENGINE)]
    endings = [entry["args"]["ended"] for entry in entries(trace, "E", SEATS) if "args" in entry]
    assert {"preempted", "error", "stop"} <= set(endings)


def test_no_events_make_an_empty_trace() -> None:
    check_format(chrome_trace([]))


def test_the_log_forgets_the_oldest() -> None:
    now = iter(range(10))
    log = EventLog(2, lambda: float(next(now)))
    for block_id in range(3):
        log.emit(BlockAllocated(0, block_id))
    assert log.entries() == [RecordedEvent(1.0, BlockAllocated(0, 1)), RecordedEvent(2.0, BlockAllocated(0, 2))]


def test_events_say_who_was_in_each_step_and_what_came_of_it() -> None:
    engine, _ = make_engine(next_token)
    run(engine, "ab", "cdefgh")
    events = [entry.event for entry in engine.events()]
    engine.close()
    seats = {event.seat: event.request_id for event in events if isinstance(event, RequestAdmitted)}
    tokens: defaultdict[str, list[int]] = defaultdict(list)
    for plan, result in zip(
        [event for event in events if isinstance(event, StepPlanned)],
        [event for event in events if isinstance(event, StepFinished)],
        strict=True,
    ):
        for seat, token_id in zip(plan.logit_seats, result.token_ids, strict=True):
            tokens[seats[seat]].append(token_id)
    assert tokens == {
        "0": [*(65 + n % 26 for n in range(2, 14)), EOS],
        "1": [*(65 + n % 26 for n in range(6, 18)), EOS],
    }
