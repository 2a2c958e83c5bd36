from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import Any, NoReturn

import pytest
from async_helpers import deltas, make_async, run, text_of, until, until_idle, until_running
from face_fakes import make_engine

from octavo import EngineDeadError, PoolingParams, RequestError, RequestOutput
from octavo.errors import QueueFullError, RequestTimeoutError
from octavo.frontend.async_engine import AsyncLLM


def test_requests_stream_side_by_side_under_the_ids_they_came_with() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            prompts = [f"prompt {index}" for index in range(20)]
            assert await asyncio.gather(*(text_of(llm, prompt, prompt) for prompt in prompts)) == prompts
            outputs = [output async for output in llm.generate("x", deltas(), "an id")]
            assert {output.request_id for output in outputs} == {"an id"}
            assert llm.num_unfinished == llm.num_waiting == 0

    run(test)


def test_an_id_that_is_in_use_is_refused_and_its_request_goes_on() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            first = asyncio.create_task(text_of(llm, "a" * 20, "a"))
            await asyncio.sleep(0)
            with pytest.raises(RequestError, match="request id 'a' is in use") as refusal:
                await text_of(llm, "b", "a")
            assert refusal.value.parameter == "request_id"
            assert await first == "a" * 20

    run(test)


def test_an_id_may_be_used_again_once_the_last_output_was_read_or_the_request_left_or_refused() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            async for output in llm.generate("abc", deltas(), "a"):
                if output.finished:
                    assert await text_of(llm, "again", "a") == "again"
            left = llm.generate("a" * 200, deltas(), "a")
            await left.__anext__()
            await left.aclose()  # type: ignore[attr-defined]
            with pytest.raises(RequestError, match="empty"):
                await text_of(llm, "", "a")
            assert await text_of(llm, "again", "a") == "again"

    run(test)


def test_an_id_may_be_used_again_right_after_its_loop_was_left() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.005}) as (llm, _):
            async for _ in llm.generate("a" * 200, deltas(), "a"):
                break
            assert await text_of(llm, "again", "a") == "again"

    run(test)


def test_prompts_that_are_started_apart_may_share_an_id() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            prepared = await llm.prepare(["one", "two"], deltas())
            started = [llm.start([entry], "same") for entry in prepared if not isinstance(entry, RequestError)]
            for generation, text in zip(started, ["one", "two"], strict=True):
                assert "".join([output.outputs[0].text async for _, output in generation]) == text

    run(test)


def test_prompts_that_are_started_together_come_with_their_index() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            prepared = await llm.prepare(["one", "two", "three"], deltas())
            inputs = [entry for entry in prepared if not isinstance(entry, RequestError)]
            texts = ["", "", ""]
            async for index, output in llm.start(inputs, "a"):
                texts[index] += output.outputs[0].text
            assert texts == ["one", "two", "three"]

    run(test)


def test_a_bad_prompt_is_refused_where_it_is_generated_and_told_where_it_is_prepared() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            with pytest.raises(RequestError, match="empty"):
                await text_of(llm, "")
            good, bad = await llm.prepare(["a", ""], deltas())
            assert not isinstance(good, RequestError)
            assert isinstance(bad, RequestError)
            assert llm.num_waiting == 0

    run(test)


def test_a_cancelled_reader_ends_its_request() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.01}) as (llm, _):
            task = asyncio.create_task(text_of(llm, "a" * 200))
            await until(lambda: llm.num_unfinished == 1)
            await until_running(llm)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert llm.num_unfinished == 0
            await until_idle(llm)

    run(test)


def test_leaving_the_loop_early_ends_the_request() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.01}) as (llm, _):
            generation = llm.generate("a" * 200, deltas(), "a")
            await generation.__anext__()
            await generation.aclose()  # type: ignore[attr-defined]
            assert llm.num_unfinished == 0

    run(test)


def test_a_slow_reader_gets_few_large_outputs() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            texts = []
            async for output in llm.generate("abcdefghij" * 20, deltas(), "a"):
                texts.append(output.outputs[0].text)
                await asyncio.sleep(0.2)
            assert "".join(texts) == "abcdefghij" * 20
            assert len(texts) < 10

    run(test)


def test_an_aborted_request_ends_with_what_it_has() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.01}) as (llm, _):
            outputs: list[RequestOutput] = []
            async for output in llm.generate("abcdefghij" * 20, deltas(), "a"):
                outputs.append(output)
                await llm.abort("a")
            assert outputs[-1].outputs[0].finish_reason == "abort"
            assert 0 < sum(len(output.outputs[0].token_ids) for output in outputs) < 200

    run(test)


def test_an_aborted_embedding_is_an_error_and_no_empty_vector() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.05}) as (llm, _):
            waiting = asyncio.create_task(anext(llm.encode("a" * 200, PoolingParams(), "a")))
            await until_running(llm)
            await llm.abort("a")
            output = await waiting
            assert output.error is not None
            assert output.error.code == "request_aborted"

    run(test)


def test_a_form_that_others_leave_no_time_may_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_grammar(_: object) -> NoReturn:
        raise QueueFullError("all are busy")

    async def test() -> None:
        async with make_async() as (llm, _):
            monkeypatch.setattr(llm.engine._inputs._grammars, "compile", compile_grammar)
            with pytest.raises(QueueFullError, match="busy"):
                await text_of(llm, "x", structured_outputs={"regex": "x"})
            assert llm.num_waiting == 0

    run(test)


def test_a_form_that_takes_long_holds_up_neither_streams_nor_long_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        compiled = threading.Event()
        async with make_async() as (llm, _):
            monkeypatch.setattr(llm.engine._inputs._grammars, "compile", lambda _: compiled.wait(20))
            waiting = [asyncio.create_task(text_of(llm, "x", structured_outputs={"regex": "x"})) for _ in range(9)]
            await asyncio.sleep(0)
            assert await text_of(llm, "short") == "short"
            assert await llm.prepare(["long " * 1000], deltas())
            compiled.set()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(test)


def test_more_requests_than_may_wait_are_refused_but_never_the_first() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.02, "max_num_seqs": 1}, max_num_queued_reqs=2) as (llm, _):
            llm.check_admission(1000)
            tasks = [asyncio.create_task(text_of(llm, "a" * 50))]
            await until_running(llm)
            tasks += [asyncio.create_task(text_of(llm, "b")) for _ in range(2)]
            await until(lambda: llm.num_waiting == 2)
            with pytest.raises(QueueFullError, match="max_num_queued_reqs"):
                await text_of(llm, "c")
            assert await asyncio.gather(*tasks) == ["a" * 50, "b", "b"]
            assert await text_of(llm, "d") == "d"

    run(test)


def test_a_request_past_its_deadline_ends_with_an_error() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.02}) as (llm, _):
            (prepared,) = await llm.prepare(["a" * 300], deltas())
            assert not isinstance(prepared, RequestError)
            with pytest.raises(RequestTimeoutError):
                async for _ in llm.start([prepared], "a", timeout=0.1):
                    pass
            await until_idle(llm)

    run(test)


def test_an_end_that_comes_with_the_last_results_is_told_to_every_reader() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.002}) as (llm, _):
            tasks = [asyncio.create_task(text_of(llm, "a" * 200)) for _ in range(3)]
            await until_running(llm)
            time.sleep(0.05)  # the loop is busy: results pile up
            llm.close()
            for task in tasks:
                with pytest.raises(EngineDeadError, match="closed"):
                    await task

    run(test)


def test_a_failed_engine_is_told_to_every_reader_and_once_to_its_owner() -> None:
    def next_token(ids: list[int], prompt_len: int) -> int:
        del prompt_len
        if ids[0] == ord("!"):
            raise SystemExit("injected")
        return 65

    async def test() -> None:
        failures: list[str] = []
        options = {"on_failure": lambda: failures.append("failed")}
        async with make_async(engine={"next_token": next_token, "step_seconds": 0.01}, **options) as (llm, _):
            waiting = [asyncio.create_task(text_of(llm, "a")) for _ in range(3)]
            await until(lambda: llm.num_unfinished == 3)
            with pytest.raises(EngineDeadError):
                await text_of(llm, "!")
            for task in waiting:
                with pytest.raises(EngineDeadError):
                    await task
            assert failures == ["failed"]
            assert llm.errored
            with pytest.raises(EngineDeadError):
                await llm.check_health()
            with pytest.raises(EngineDeadError):
                await text_of(llm, "b")

    run(test)


def test_a_closed_engine_is_told_to_every_reader_and_has_not_failed() -> None:
    async def test() -> None:
        failures: list[str] = []
        options: dict[str, Any] = {"on_failure": lambda: failures.append("failed")}
        async with make_async(engine={"step_seconds": 0.01}, **options) as (llm, _):
            task = asyncio.create_task(text_of(llm, "a" * 100))
            await until_running(llm)
            time.sleep(0.1)  # results pile up, and the engine's end comes behind them
            llm.close()
            with pytest.raises(EngineDeadError, match="closed"):
                await task
            with pytest.raises(EngineDeadError, match="closed"):
                await text_of(llm, "b")
            assert (failures, llm.errored, llm.is_running) == ([], False, False)

    run(test)


def test_a_close_is_told_to_those_who_wait_for_a_thread_and_cancels_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            snapshot, prepare, may_go_on = llm.engine.snapshot, llm.engine.prepare, threading.Event()
            monkeypatch.setattr(llm.engine, "snapshot", lambda: may_go_on.wait(20) and snapshot())
            monkeypatch.setattr(
                llm.engine, "prepare", lambda *args, **options: may_go_on.wait(20) and prepare(*args, **options)
            )
            asked: list[asyncio.Task[Any]] = [asyncio.create_task(llm.snapshot())]
            await asyncio.sleep(0.01)
            asked.append(asyncio.create_task(llm.reset_prefix_cache()))
            asked += [asyncio.create_task(text_of(llm, "long " * 1000)) for _ in range(9)]
            given_up = asyncio.create_task(llm.reset_prefix_cache())
            await asyncio.sleep(0.05)
            given_up.cancel()
            llm.close()
            may_go_on.set()
            ends = await asyncio.wait_for(asyncio.gather(*asked, given_up, return_exceptions=True), 10)
            assert {type(end) for end in ends[:-1]} == {EngineDeadError}
            assert all("was closed" in str(end) for end in ends[:-1])
            assert isinstance(ends[-1], asyncio.CancelledError)

    run(test)


def test_whatever_is_asked_of_a_closed_engine_says_that_it_was_closed() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            llm.close()
            for call in (
                llm.reset_prefix_cache(),
                llm.snapshot(),
                llm.call_off_loop(lambda: 1),
                llm.prepare(["long " * 1000], deltas()),
                llm.abort("a"),
            ):
                with pytest.raises(EngineDeadError, match="was closed"):
                    await call

    run(test)


@pytest.mark.parametrize("prompt", ["short", "long " * 1000])
def test_a_request_that_a_pause_holds_up_is_not_prepared_once_the_engine_was_closed(
    prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            await llm.pause_generation()
            held = asyncio.create_task(text_of(llm, prompt))
            await asyncio.sleep(0.01)
            prepared: list[Any] = []
            monkeypatch.setattr(llm.engine, "prepare", lambda prompts, *_, **__: prepared.append(prompts))
            llm.close()
            with pytest.raises(EngineDeadError, match="was closed"):
                await held
            assert not prepared

    run(test)


def test_a_hanging_step_is_told_to_every_reader() -> None:
    async def test() -> None:
        failures: list[str] = []
        options: dict[str, Any] = {"hang_seconds": 0.3, "on_failure": lambda: failures.append("failed")}
        async with make_async(engine={"step_seconds": 20.0}, **options) as (llm, _):
            with pytest.raises(EngineDeadError, match="hangs"):
                await text_of(llm, "a")
            assert failures == ["failed"]

    run(test)


def test_an_engine_that_works_or_sleeps_is_healthy() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.01}, hang_seconds=0.25) as (llm, _):
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                assert await text_of(llm, "abc" * 10) == "abc" * 10
                await llm.check_health()
            await asyncio.sleep(0.5)
            await llm.check_health()
            assert not llm.errored

    run(test)


def test_an_engine_that_is_dropped_is_freed() -> None:
    freed: list[weakref.ref[Any]] = []

    async def test() -> None:
        built, executor = make_engine()
        llm = AsyncLLM(built)
        assert await text_of(llm, "a") == "a"
        freed.extend((weakref.ref(llm), weakref.ref(built), weakref.ref(executor)))

    run(test)
    gc.collect()
    assert [reference() for reference in freed[:2]] == [None, None]


def test_one_engine_serves_one_loop_after_another() -> None:
    built, _ = make_engine()
    llm = AsyncLLM(built)
    for prompt in ("first", "second"):
        assert asyncio.run(text_of(llm, prompt)) == prompt

    async def two_at_once() -> None:
        assert await text_of(llm, "third") == "third"
        with pytest.raises(RuntimeError, match="one event loop"):
            await asyncio.to_thread(asyncio.run, text_of(llm, "fourth"))

    asyncio.run(two_at_once())
    llm.shutdown()


def test_answers_that_are_complete_are_delivered_though_the_engine_has_failed_since() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            prepared = await llm.prepare(["abc"], deltas())
            inputs = [entry for entry in prepared if not isinstance(entry, RequestError)]
            generation = llm.start(inputs, "a")
            await until(lambda: bool(generation._ready) and generation._engine.num_waiting == 0)
            await asyncio.sleep(0.1)
            llm._fail("it has failed")
            outputs = [output async for _, output in generation]
            assert outputs[-1].finished
            assert "".join(output.outputs[0].text for output in outputs) == "abc"

    run(test)


def test_what_came_before_a_failure_is_delivered_before_the_error() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.002}) as (llm, _):
            prepared = await llm.prepare(["ab" * 100], deltas())
            generation = llm.start([entry for entry in prepared if not isinstance(entry, RequestError)], "a")
            await until(lambda: bool(generation._ready))
            llm._fail("it has failed")
            _, output = await generation.__anext__()
            assert "ab" * 100 != output.outputs[0].text != ""
            with pytest.raises(EngineDeadError, match="failed"):
                await generation.__anext__()

    run(test)


def test_a_reader_that_reads_nothing_loses_its_request_before_much_piles_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.frontend.generation.MAX_UNREAD", 100)

    async def test() -> None:
        async with make_async(engine={"step_seconds": 0.002}) as (llm, _):
            prepared = await llm.prepare(["ab" * 100], deltas(logprobs=4))
            generation = llm.start([entry for entry in prepared if not isinstance(entry, RequestError)], "a")
            await until(lambda: llm.num_unfinished == 0)
            with pytest.raises(RequestError, match="read too slowly"):
                await generation.__anext__()
            assert await text_of(llm, "ab" * 100) == "ab" * 100

    run(test)


def test_snapshots_asked_for_at_once_are_one_and_do_not_hold_up_what_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            snapshot, may_go_on, calls = llm.engine.snapshot, threading.Event(), []

            def slow_snapshot() -> Any:
                calls.append(may_go_on.wait(20))
                return snapshot()

            monkeypatch.setattr(llm.engine, "snapshot", slow_snapshot)
            asked = [asyncio.create_task(llm.snapshot()) for _ in range(8)]
            await asyncio.sleep(0)
            assert await llm.prepare(["long " * 1000], deltas())
            asked[0].cancel()
            await asyncio.sleep(0)
            may_go_on.set()
            taken = await asyncio.gather(*asked[1:])
            assert all(entry is taken[0] for entry in taken)
            assert calls == [True]
            assert await llm.snapshot() is not taken[0]

    run(test)


def test_a_step_that_nobody_waits_for_any_more_is_stopped() -> None:
    async def test() -> None:
        async with make_async(engine={"step_seconds": 60.0}) as (llm, executor):
            tasks = [asyncio.create_task(text_of(llm, "a" * 50)) for _ in range(2)]
            await until_running(llm)
            tasks[0].cancel()
            await asyncio.sleep(0.05)
            assert executor.num_cancelled == 0, "the other one waits for it"
            tasks[1].cancel()
            await until_idle(llm)
            assert executor.num_cancelled >= 1

    run(test)
