"""An `AsyncLLM` without a model, and short ways to run it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from face_fakes import FakeExecutor, make_engine

from octavo import RequestOutput, RequestOutputKind, SamplingParams
from octavo.frontend.async_engine import AsyncLLM

_ordinals = itertools.count()


@asynccontextmanager
async def make_async(
    *, engine: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[AsyncLLM, FakeExecutor]]:
    built, executor = make_engine(**(engine or {}))
    llm = AsyncLLM(built, **options)
    try:
        yield llm, executor
    finally:
        llm.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def deltas(**values: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=300, output_kind=RequestOutputKind.DELTA, **values)  # type: ignore[arg-type]


async def text_of(llm: AsyncLLM, prompt: str, request_id: str | None = None, **options: Any) -> str:
    request_id = f"text {next(_ordinals)}" if request_id is None else request_id
    form = options.pop("structured_outputs", None)
    outputs = [output async for output in llm.generate(prompt, deltas(structured_outputs=form), request_id, **options)]
    assert outputs[-1].finished
    return "".join(output.outputs[0].text for output in outputs)


async def outputs_of(llm: AsyncLLM, prompt: str, request_id: str, params: SamplingParams) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params, request_id)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def running(llm: AsyncLLM) -> float:
    return next(metric.value for metric in await llm.get_metrics() if metric.name == "vllm:num_requests_running")


async def until_running(llm: AsyncLLM) -> None:
    while not await running(llm):
        await asyncio.sleep(0.005)


async def until_idle(llm: AsyncLLM) -> None:
    """An aborted request is gone after the step that it was in."""
    while await running(llm):
        await asyncio.sleep(0.005)
