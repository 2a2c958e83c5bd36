"""`AsyncLLM.pause_generation`, `resume_generation` and `drain`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from async_helpers import deltas, make_async, outputs_of, run, running, text_of, until, until_idle, until_running
from face_fakes import EOS, make_engine

from octavo import EngineDeadError, PoolingParams, RequestError, RequestOutputKind, SamplingParams
from octavo.frontend.async_engine import AsyncLLM
from octavo.frontend.input_processor import EngineInput


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_a_pause_holds_up_new_requests_and_treats_running_ones_as_told(mode: Any) -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            old = asyncio.create_task(text_of(llm, "a" * 60))
            await until_running(llm)
            await llm.pause_generation(mode=mode)
            assert await llm.is_paused()
            assert llm.num_unfinished == (mode == "keep")
            new = asyncio.create_task(text_of(llm, "new"))
            await asyncio.sleep(0.1)
            assert not new.done()
            assert old.done() == (mode != "keep")
            await llm.resume_generation()
            assert await new == "new"
            text = await old
            assert (text == "a" * 60) == (mode != "abort")

    run(test)


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_requests_that_a_pause_keeps_are_ended_by_another_pause(mode: Any) -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            kept = asyncio.create_task(text_of(llm, "a" * 60))
            await until_running(llm)
            await llm.pause_generation(mode="keep")
            await llm.pause_generation(mode=mode)
            assert (await kept == "a" * 60) == (mode == "wait")

    run(test)


@pytest.mark.parametrize("how", ["drain", "close"])
def test_a_request_that_a_pause_holds_up_is_told_of_the_end(how: str) -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            assert await text_of(llm, "a") == "a"
            await llm.pause_generation()
            held = asyncio.create_task(text_of(llm, "b"))
            await asyncio.sleep(0.01)
            if how == "drain":
                await llm.drain(1)
            else:
                llm.close()
            with pytest.raises(EngineDeadError):
                await held

    run(test)


def test_a_drained_engine_ends_what_runs_and_takes_nothing_new() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.002}) as (llm, _):
            task = asyncio.create_task(text_of(llm, "a" * 50))
            await until(lambda: llm.num_unfinished == 1)
            drain = asyncio.create_task(llm.drain(10))
            await asyncio.sleep(0)
            with pytest.raises(EngineDeadError, match="shutting down"):
                await text_of(llm, "b")
            await drain
            assert await task == "a" * 50

    run(test)


def test_a_drain_that_takes_too_long_ends_requests_with_an_error() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.02}) as (llm, _):
            task = asyncio.create_task(text_of(llm, "a" * 300))
            await until(lambda: llm.num_unfinished == 1)
            await llm.drain(0.1)
            with pytest.raises(EngineDeadError, match="shutting down"):
                await task

    run(test)


def test_a_pause_goes_on_in_the_next_loop_and_ends_there() -> None:
    built, _ = make_engine()
    llm = AsyncLLM(built)

    async def wait_in_vain() -> None:
        await llm.pause_generation()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(text_of(llm, "held"), 0.05)

    async def go_on() -> None:
        held = asyncio.create_task(text_of(llm, "held"))
        await asyncio.sleep(0.05)
        assert not held.done()
        await llm.resume_generation()
        assert await held == "held"

    asyncio.run(wait_in_vain())
    asyncio.run(go_on())
    llm.close()


def hold_up_preparing(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let prompts be prepared only after the second event; the first tells that one is to be."""
    prepare, is_preparing, may_go_on = llm.engine.prepare, threading.Event(), threading.Event()

    def slow_prepare(*args: Any, **options: Any) -> Any:
        is_preparing.set()
        may_go_on.wait(20)
        return prepare(*args, **options)

    monkeypatch.setattr(llm.engine, "prepare", slow_prepare)
    return is_preparing, may_go_on


@pytest.mark.parametrize("mode", ["wait", "keep"])
def test_a_request_that_is_being_prepared_when_a_pause_begins_waits_too(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = {"max_model_len": 4096, "num_blocks": 512}

    async def test() -> None:
        async with make_async(engine=room) as (llm, _):
            is_preparing, may_go_on = hold_up_preparing(llm, monkeypatch)
            late = asyncio.create_task(text_of(llm, "a" * 2_001))
            await until(is_preparing.is_set)
            await llm.pause_generation(mode=mode)
            may_go_on.set()
            await asyncio.sleep(0.1)
            assert (llm.num_unfinished, llm.num_waiting) == (1, 1)
            await llm.resume_generation()
            assert await late == "a" * 300

    run(test)


@pytest.mark.parametrize("how", ["abort", "pause"])
def test_a_request_that_is_being_prepared_can_be_ended(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with make_async(engine={"max_model_len": 4096, "num_blocks": 512}) as (llm, _):
            is_preparing, may_go_on = hold_up_preparing(llm, monkeypatch)
            late = asyncio.create_task(outputs_of(llm, "a" * 2_001, "late", deltas()))
            await until(is_preparing.is_set)
            await (llm.abort("late") if how == "abort" else llm.pause_generation(mode="abort"))
            (output,) = await asyncio.wait_for(late, 5)
            may_go_on.set()
            assert output.outputs[0].finish_reason == "abort"
            assert llm.num_unfinished == llm.num_waiting == 0

    run(test)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
@pytest.mark.parametrize("how", ["abort", "pause"])
def test_a_request_that_a_pause_holds_up_can_be_ended(how: str, mode: Any) -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            await llm.pause_generation(mode=mode)
            held = asyncio.create_task(outputs_of(llm, "held", "b", SamplingParams(n=2)))
            await until(lambda: llm.num_waiting == llm.num_unfinished == 1)
            await (llm.abort(["b"]) if how == "abort" else llm.pause_generation(mode="abort"))
            (output,) = await asyncio.wait_for(held, 5)
            assert (output.request_id, output.prompt, output.finished) == ("b", "held", True)
            ends = [(entry.index, entry.token_ids, entry.finish_reason) for entry in output.outputs]
            assert ends == [(0, [], "abort"), (1, [], "abort")]
            assert llm.num_unfinished == llm.num_waiting == 0
            await llm.resume_generation()
            assert await text_of(llm, "again", "b") == "again"

    run(test)


def test_an_embedding_that_a_pause_holds_up_ends_with_an_error() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            await llm.pause_generation()
            held = asyncio.create_task(anext(llm.encode("held", PoolingParams(), "b")))
            await until(lambda: llm.num_waiting == 1)
            await llm.abort("b")
            output = await asyncio.wait_for(held, 5)
            assert output.error is not None
            assert output.error.code == "request_aborted"

    run(test)


def test_who_is_cancelled_in_a_pause_is_cancelled_though_the_request_was_aborted() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            await llm.pause_generation()
            held = asyncio.create_task(text_of(llm, "held", "b"))
            await until(lambda: llm.num_waiting == 1)
            await llm.abort("b")
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await held
            await until(lambda: llm.num_waiting == 0)
            await llm.resume_generation()
            assert await text_of(llm, "again", "b") == "again"

    run(test)


def test_a_pause_of_an_unknown_kind_is_refused_and_pauses_nothing() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            with pytest.raises(RequestError, match='mode must be "abort", "wait" or "keep", got \'kept\''):
                await llm.pause_generation(mode="kept")  # type: ignore[arg-type]
            assert not await llm.is_paused()

    run(test)


def test_requests_that_a_pause_keeps_are_let_end_by_a_drain() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            kept = asyncio.create_task(text_of(llm, "a" * 60))
            await until_running(llm)
            await llm.pause_generation(mode="keep")
            await llm.drain(20)
            assert await kept == "a" * 60

    run(test)


def test_what_is_being_prepared_when_a_drain_begins_is_refused_though_a_pause_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            is_preparing, may_go_on = hold_up_preparing(llm, monkeypatch)
            late = asyncio.create_task(text_of(llm, "a" * 2_001))
            await until(is_preparing.is_set)
            await llm.drain(1)
            with pytest.raises(EngineDeadError, match="shutting down"):
                await llm.pause_generation(mode="wait")
            may_go_on.set()
            with pytest.raises(EngineDeadError, match="shutting down"):
                await asyncio.wait_for(late, 5)

    run(test)


def test_a_pause_does_not_stop_what_a_drain_lets_end() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            task = asyncio.create_task(text_of(llm, "a" * 60))
            await until_running(llm)
            drain = asyncio.create_task(llm.drain(10))
            await asyncio.sleep(0)
            with pytest.raises(EngineDeadError, match="shutting down"):
                await llm.pause_generation(mode="keep")
            assert await task == "a" * 60
            await drain

    run(test)


def test_a_request_that_a_pause_keeps_can_be_aborted_and_the_others_stay() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            kept = asyncio.create_task(text_of(llm, "a" * 60, "kept"))
            wanted = asyncio.create_task(text_of(llm, "b" * 60, "aborted"))
            await until_running(llm)
            await llm.pause_generation(mode="keep")
            await llm.abort("aborted")
            assert len(await asyncio.wait_for(wanted, 5)) < 60
            assert not kept.done()
            await llm.resume_generation()
            assert await kept == "a" * 60

    run(test)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_a_closed_engine_cannot_be_paused(mode: Any) -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            llm.close()
            with pytest.raises(EngineDeadError, match="was closed"):
                await llm.pause_generation(mode=mode)
            assert not await llm.is_paused()

    run(test)


@pytest.mark.parametrize("mode", ["abort", "wait"])
@pytest.mark.parametrize("kind", list(RequestOutputKind), ids=lambda kind: kind.name)
def test_a_pause_does_not_wait_for_a_reader_who_never_reads(mode: Any, kind: RequestOutputKind) -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            params = deltas()
            params.output_kind = kind
            (prepared,) = await llm.prepare(["a" * 60], params)
            assert isinstance(prepared, EngineInput)
            unread = llm.start([prepared], "unread")
            await until_running(llm)
            await asyncio.wait_for(llm.pause_generation(mode=mode), 10)
            assert not await running(llm)
            await llm.resume_generation()
            assert await text_of(llm, "new") == "new"
            text = "".join([output.outputs[0].text async for _, output in unread])
            assert text == "a" * 60 if mode == "wait" else len(text) < 60

    run(test)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_nothing_is_computed_any_more_when_a_pause_has_begun(mode: Any) -> None:
    computed: list[int] = []

    def next_token(ids: list[int], prompt_len: int) -> int:
        computed.append(len(ids))
        return EOS if len(ids) > 25 else prompt_len

    async def test() -> None:
        async with make_async(engine={"next_token": next_token, "step_seconds": 0.05}) as (llm, _):
            reader = asyncio.create_task(text_of(llm, "abc"))
            await until(lambda: len(computed) > 2)
            await llm.pause_generation(mode=mode)
            num_computed = len(computed)
            await asyncio.sleep(0.15)
            assert len(computed) == num_computed
            await llm.resume_generation()
            await reader

    run(test)


def test_a_pause_that_waits_does_not_wait_for_what_is_left_unread_before_it() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            outputs = llm.generate("a" * 9, deltas(), "unread")
            await outputs.__anext__()
            await until_idle(llm)
            await asyncio.wait_for(llm.pause_generation(mode="wait"), 10)
            assert await llm.is_paused()

    run(test)


def test_a_pause_takes_vllms_older_word_for_its_mode() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            old = asyncio.create_task(text_of(llm, "a" * 60))
            await until_running(llm)
            await llm.pause_generation(wait_for_inflight_requests=True)
            assert await old == "a" * 60

    run(test)


def test_a_pause_that_is_over_waits_for_nobody_and_leaves_the_cache() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.01}) as (llm, _):
            reader = asyncio.create_task(text_of(llm, "a" * 200))
            await until_running(llm)
            pause = asyncio.create_task(llm.pause_generation(mode="wait"))
            while not await llm.is_paused():
                await asyncio.sleep(0)
            await llm.resume_generation()
            await asyncio.wait_for(pause, 1)
            assert not reader.done()
            assert await reader == "a" * 200
            metrics = {metric.name: metric.value for metric in await llm.get_metrics()}
            assert metrics["octavo:kv_cache_cached_bytes"] > 0

    run(test)
