"""Threads for what would hold up an event loop: tokenising, waiting for grammars, asking the engine between two steps.

Each kind has its own, so that none waits for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

from octavo.errors import EngineDeadError
from octavo.sampling_params import SamplingParams

Result = TypeVar("Result")

_SHORT_PROMPT = 2_000
"""Characters, or ids, that are tokenised and checked in less time (0.2 ms) than it takes to hand them to a thread."""
_NUM_TOKENIZER_THREADS = 4
"""So that one huge text does not hold up the others."""
_NUM_FORM_THREADS = 64
"""They wait for their grammars to be compiled, one after the other, each for seconds at most."""


class OffLoop:
    """The threads. All methods but `close` are called on the loop's thread.

    Who waits for one, or comes for one, when they are let go of is told so with `EngineDeadError`.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_TOKENIZER_THREADS, thread_name_prefix="octavo-tokenize")
        self._form_threads = ThreadPoolExecutor(_NUM_FORM_THREADS, thread_name_prefix="octavo-form")
        self._asking_thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-ask")
        self._is_closed = False

    async def call(self, call: Callable[[], Result]) -> Result:
        """Run something that takes a while, such as tokenising."""
        return await self._run(self._threads, call)

    async def ask(self, call: Callable[[], Result]) -> Result:
        """Run something that waits for the end of the engine's step."""
        return await self._run(self._asking_thread, call)

    async def prepare(self, prompts: Sequence[Any], params: object, prepare: Callable[[], Result]) -> Result:
        """Run the preparation of these prompts, where it belongs: if it takes less than a moment, here."""
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            return await self._run(self._form_threads, prepare)
        return prepare() if _are_short(prompts) else await self.call(prepare)

    def close(self) -> None:
        """Let go of all threads; what waits for one is never run."""
        self._is_closed = True
        for threads in (self._threads, self._form_threads, self._asking_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, threads: ThreadPoolExecutor, call: Callable[[], Result]) -> Result:
        """Run a call on one of these threads. Not `run_in_executor`, which would cancel who waits in `close`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def tell(work: Future[Result]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it who waited
                loop.call_soon_threadsafe(_copy, work, answer)

        try:
            work = threads.submit(call)
        except RuntimeError:
            if not self._is_closed:
                raise
            raise _closed() from None
        work.add_done_callback(tell)
        try:
            return await answer
        finally:
            work.cancel()  # of no use to who was cancelled, unless it runs


class SharedCall(Generic[Result]):
    """A call whose result goes to all who ask while it runs."""

    def __init__(self) -> None:
        self._running: asyncio.Task[Result] | None = None

    async def __call__(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Call, unless a call runs; return what it returns. Who is cancelled takes nothing from the others."""
        task = self._running
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._running = asyncio.ensure_future(call())
        return await asyncio.shield(task)


def _copy(work: Future[Result], answer: asyncio.Future[Result]) -> None:
    """Give what came of a call to who waits for it, if somebody still does."""
    if answer.done():
        return
    error = _closed() if work.cancelled() else work.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(work.result())


def _closed() -> EngineDeadError:
    return EngineDeadError("the engine was closed; create a new one.")


def _are_short(prompts: Sequence[Any]) -> bool:
    """Whether to prepare prompts takes less time than the event loop may lose."""
    texts = (
        prompt.get("prompt", prompt.get("prompt_token_ids")) if isinstance(prompt, Mapping) else prompt
        for prompt in prompts
    )
    return sum(len(text) if isinstance(text, Sized) else 1 for text in texts) + len(prompts) <= _SHORT_PROMPT
