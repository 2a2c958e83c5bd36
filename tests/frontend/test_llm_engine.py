from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
from face_fakes import make_engine

from octavo import EngineDeadError, RequestError, RequestOutput, RequestOutputKind, SamplingParams
from octavo.core.scheduler import StalledError
from octavo.frontend import engine_thread, output_processor
from octavo.frontend.llm_engine import LLMEngine, _derived_seed
from octavo.observe.events import Event, RequestRefused
from octavo.outputs import OutputError


class EventLog:
    enabled = True
    wants_steps = wants_blocks = False

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


def run_to_end(engine: LLMEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def make_params(**values: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=100, **values)  # type: ignore[arg-type]


def test_requests_run_when_stepped_and_come_out_under_their_own_ids() -> None:
    engine, _ = make_engine()
    for request_id in ("one", "two"):
        assert engine.add_request(request_id, request_id, make_params()) == request_id
    finals = {output.request_id: output.outputs[0].text for output in run_to_end(engine) if output.finished}
    assert finals == {"one": "one", "two": "two"}
    assert engine.step() == []
    engine.close()


def test_a_request_id_in_use_is_refused_and_free_again_at_its_end() -> None:
    engine, _ = make_engine()
    engine.add_request("a", "hello", make_params())
    with pytest.raises(RequestError, match="in use"):
        engine.add_request("a", "again", make_params())
    run_to_end(engine)
    engine.add_request("a", "again", make_params())
    assert run_to_end(engine)[-1].outputs[0].text == "again"
    engine.close()


def test_refused_prompts_are_told_to_who_listens() -> None:
    log = EventLog()
    engine, _ = make_engine(num_blocks=2, events=log)
    for prompt in ("", "x" * 100):
        with pytest.raises(RequestError) as refusal:
            engine.add_request("a", prompt, make_params())
        assert log.events[-1] == RequestRefused(str(refusal.value))
    engine.close()


def test_steps_that_make_nothing_do_not_hold_up_the_caller() -> None:
    engine, _ = make_engine(step_seconds=0.2)
    engine.add_request("a", "abc", make_params(output_kind=RequestOutputKind.FINAL_ONLY))
    assert engine.step() == []
    assert [output.outputs[0].text for output in run_to_end(engine)] == ["abc"]
    engine.close()


def test_a_request_that_never_fits_is_refused_with_the_numbers() -> None:
    engine, _ = make_engine(num_blocks=2)
    with pytest.raises(RequestError, match="KV cache"):
        engine.add_request("a", "x" * 100, make_params())
    assert not engine.has_unfinished_requests()
    engine.close()


def test_no_limit_of_tokens_means_what_fits() -> None:
    engine, _ = make_engine(lambda _ids, _n: 65, num_blocks=2)
    engine.add_request("a", "x", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    final = run_to_end(engine)[-1].outputs[0]
    assert (len(final.token_ids), final.finish_reason) == (31, "length")
    engine.close()


def test_a_batch_with_an_id_twice_is_refused_as_a_whole() -> None:
    engine, _ = make_engine()
    engine.add_request("used", "keep", make_params())
    (one, two) = engine.prepare(["one", "two"], [make_params(), make_params()])
    assert not isinstance(one, RequestError)
    assert not isinstance(two, RequestError)
    for again in ("used", "new"):
        with pytest.raises(RequestError, match=f"'{again}' is in use"):
            engine.add_inputs([("new", one, 0), (again, two, 0)])
    assert engine.get_num_unfinished_requests() == 1
    assert {output.request_id for output in run_to_end(engine)} == {"used"}
    engine.close()


def test_nothing_is_queued_at_a_closed_engine() -> None:
    engine, _ = make_engine()
    (one,) = engine.prepare(["one"], [make_params()])
    assert not isinstance(one, RequestError)
    engine.close()
    with pytest.raises(EngineDeadError):
        engine.add_inputs([("one", one, 0)])
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("steps_before", [0, 3])
def test_an_aborted_request_is_forgotten_and_its_id_may_be_used_again(steps_before: int) -> None:
    engine, _ = make_engine()
    engine.add_request("a", "x" * 90, make_params())
    engine.add_request("b", "keep", make_params())
    for _ in range(steps_before):
        engine.step()
    engine.abort_request("a")
    engine.abort_request("unknown")
    engine.add_request("a", "new", make_params())
    finals = {output.request_id: output.outputs[0].text for output in run_to_end(engine) if output.finished}
    assert finals == {"a": "new", "b": "keep"}
    engine.close()


def test_outputs_by_kind() -> None:
    engine, _ = make_engine()
    for kind in RequestOutputKind:
        engine.add_request(kind.name, "abc", make_params(output_kind=kind))
    outputs = run_to_end(engine)
    seen = {k.name: [o.outputs[0].text for o in outputs if o.request_id == k.name] for k in RequestOutputKind}
    assert seen["CUMULATIVE"] == ["a", "ab", "abc", "abc"]
    assert seen["DELTA"] == ["a", "b", "c", ""]
    assert seen["FINAL_ONLY"] == ["abc"]
    engine.close()


def test_delta_outputs_hold_only_completions_that_changed() -> None:
    engine, _ = make_engine()
    params = SamplingParams(n=2, max_tokens=5, output_kind=RequestOutputKind.DELTA)
    engine.add_request("a", "abc", params)
    texts = {0: "", 1: ""}
    for output in run_to_end(engine):
        for completion in output.outputs:
            assert completion.token_ids
            texts[completion.index] += completion.text
    assert texts == {0: "abc", 1: "abc"}
    engine.close()


def test_no_detokenising_gives_no_text() -> None:
    engine, _ = make_engine()
    engine.add_request("a", "abc", make_params(detokenize=False))
    final = run_to_end(engine)[-1].outputs[0]
    assert (final.text, final.token_ids[:3]) == ("", [*b"abc"])
    engine.close()


@pytest.mark.parametrize("kind", list(RequestOutputKind), ids=lambda kind: kind.name)
@pytest.mark.parametrize("part", ["_Completion.add", "_Completion.output"])
def test_an_output_that_cannot_be_made_is_an_error_of_its_request_alone(
    part: str, kind: RequestOutputKind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = make_engine()
    cls, method = getattr(output_processor, part.partition(".")[0]), part.partition(".")[2]
    make = getattr(cls, method)

    def fail_for_x(completion: Any, *args: object) -> object:
        if ord("x") in completion.token_ids:
            raise OverflowError("injected")
        return make(completion, *args)

    monkeypatch.setattr(cls, method, fail_for_x)
    for text in ("abc", "x" * 90, "def"):
        engine.add_request(text[:3], text, make_params(n=1, output_kind=kind))
    finals = {output.request_id: output for output in run_to_end(engine) if output.finished}
    assert finals["xxx"].error == OutputError("request_failed", "OverflowError: injected")
    assert [(c.finish_reason, c.token_ids) for c in finals["xxx"].outputs] == [("error", [])]
    assert [finals[name].outputs[0].finish_reason for name in ("abc", "def")] == ["stop", "stop"]
    assert engine._thread.ask(lambda: len(engine._core.scheduler.roster)) == 0, "it does not run on unseen"
    assert "injected" in caplog.text
    engine.close()


def test_a_fault_of_the_core_is_reported_and_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine()

    def fail() -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(engine._core, "advance", fail)
    engine.add_request("a", "abc", make_params())
    with pytest.raises(EngineDeadError, match="a bug"):
        engine.step()
    with pytest.raises(EngineDeadError, match="a bug"):
        engine.reset_prefix_cache()
    engine.close()


def test_derived_seeds_are_distinct_and_leave_room_for_completions() -> None:
    seeds = {_derived_seed(engine_seed, ordinal) for engine_seed in range(30) for ordinal in range(30)}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_a_request_without_a_rank_is_refused_before_it_can_stop_the_engine() -> None:
    engine, _ = make_engine(policy="priority")
    with pytest.raises(RequestError, match="priority must be an integer"):
        engine.add_request("a", "hello", make_params(), priority=None)  # type: ignore[arg-type]
    engine.add_request("b", "again", make_params(), priority=3)
    assert run_to_end(engine)[-1].outputs[0].text == "again"
    engine.close()


def test_an_interrupt_while_the_engine_starts_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = set(threading.enumerate())
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with contextlib.suppress(KeyboardInterrupt):
        make_engine()
    gc.collect()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    "call",
    [LLMEngine.get_metrics, lambda engine: engine.abort_request("unknown", cancel_step=True)],
    ids=["metrics", "abort"],
)
def test_an_idle_engine_is_freed_whatever_was_asked_of_it_last(call: Callable[[LLMEngine], object]) -> None:
    engine, _ = make_engine()
    gone = threading.Event()
    weakref.finalize(engine, gone.set)
    call(engine)
    del engine
    gc.collect()
    assert gone.wait(5)


def test_an_engine_whose_last_user_goes_on_its_own_thread_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", faults.append)
    engine, _ = make_engine()
    thread, may_go = engine._thread, threading.Event()

    def hold(user: list[LLMEngine]) -> None:
        may_go.wait(5)
        user.clear()

    thread.post(partial(hold, [engine]))
    del engine
    gc.collect()
    may_go.set()
    thread._thread.join(5)
    assert not thread._thread.is_alive()
    assert faults == []


def test_a_request_that_ends_before_it_ran_is_tracked_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine()
    core = engine._core
    monkeypatch.setattr(core.scheduler, "schedule", lambda: _raise(StalledError("full")))
    engine.add_request("a", "abc", make_params())
    assert run_to_end(engine)[-1].error is not None
    assert engine.num_waiting == 0
    engine.close()


def _raise(error: Exception) -> NoReturn:
    raise error


def test_a_step_that_hangs_is_left_behind_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, may_go = threading.Event(), threading.Event()

    def hang(ids: list[int], prompt_len: int) -> int:
        del ids, prompt_len
        hangs.set()
        may_go.wait(30)
        return 1

    monkeypatch.setattr("octavo.frontend.engine_thread._CLOSE_SECONDS", 0.1)
    engine, _ = make_engine(hang)
    engine.add_request("a", "abc", make_params())
    assert hangs.wait(30)
    engine.close()
    assert "a step hangs" in caplog.text
    may_go.set()


def test_the_engine_waits_for_results_to_be_taken_and_then_goes_on() -> None:
    engine, executor = make_engine()
    engine.add_request("a", "ab" * 40, make_params())
    deadline = time.monotonic() + 30
    while not engine._thread._is_held_up:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert engine.get_metrics(), "it still answers"
    assert engine._thread._outbox.qsize() <= engine_thread._MOST_AHEAD
    assert executor.num_cancelled == 0
    assert run_to_end(engine)[-1].outputs[0].text == "ab" * 40
    engine.close()
