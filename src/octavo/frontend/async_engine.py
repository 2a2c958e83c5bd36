"""`AsyncLLM`: the engine for asyncio programs. Same parts as `LLM`: one engine thread, in this process.

The engine's thread wakes the event loop once a step; outputs are made on the loop, when their reader asks. Long texts
are tokenised on threads of their own, with the GIL released. A failed or hung engine ends every reader with an error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from octavo.errors import EngineDeadError, QueueFullError, RequestError, RequestTimeoutError
from octavo.frontend.async_facts import AsyncFacts
from octavo.frontend.call_arguments import adds_special_tokens, checked_priority, refuse
from octavo.frontend.generation import Generation
from octavo.frontend.named_calls import NamedCalls
from octavo.frontend.off_loop import OffLoop, SharedCall
from octavo.frontend.output_processor import aborted_output
from octavo.frontend.pooling_calls import embedding_output
from octavo.frontend.start import checked_engine, start_engine
from octavo.frontend.watchdog import Watchdog
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.frontend.input_processor import EngineInput, Prompt
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.observe.snapshot import EngineSnapshot
    from octavo.outputs import EmbeddingRequestOutput, RequestOutput
    from octavo.pooling_params import PoolingParams
    from octavo.sampling_params import SamplingParams

logger = logging.getLogger("octavo")

Result = TypeVar("Result")
PauseMode = Literal["abort", "wait", "keep"]

DOUBT_SECONDS = 3.0
"""An engine that has done nothing for so long counts as unhealthy; its counter moves with every op, many a second."""
HANG_SECONDS = 30.0
"""An engine that has done nothing for so long has failed."""


class AsyncLLM(AsyncFacts):
    """An engine for one event loop at a time. All methods but `close` are called on that loop's thread.

    Args:
        engine: used, and in the end closed, by this object only.
        max_num_queued_reqs: how many requests may wait for their first step; None is no limit. A call that finds
            nobody waiting is never refused.
        hang_seconds: after how long without any progress within a step the engine counts as failed.
        on_failure: called once, on the loop, when the engine has failed.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *,
        max_num_queued_reqs: int | None = None,
        hang_seconds: float = HANG_SECONDS,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = checked_engine(engine)
        self.on_failure = on_failure
        self._max_queued = max_num_queued_reqs
        self._generations: dict[str, Generation] = {}
        """By the engine's id of each request."""
        self._calls = NamedCalls()
        self._ordinals = itertools.count()
        self._num_preparing = 0
        """Prompts that are being tokenised."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_woken = False
        self._refusal = None
        self.errored = self._is_closed = False
        self._pause: object | None = None
        self._changed = asyncio.Event()
        """Set by whatever may end a request or a pause."""
        self._off_loop = OffLoop()
        self._snapshots: SharedCall[EngineSnapshot] = SharedCall()
        self._watchdog = Watchdog(
            _weakly(engine.heartbeat),
            doubt_seconds=DOUBT_SECONDS,
            hang_seconds=hang_seconds,
            on_hang=_weakly(self._report_hang),
        )
        weakref.finalize(self, self._watchdog.stop)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineConfig,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: None = None,
    ) -> AsyncLLM:
        """Load a model and make an engine for it. `start_engine_loop` and `usage_context` have no effect."""
        del start_engine_loop, usage_context
        return cls(start_engine(engine_args, stat_loggers))

    def attach(self) -> None:
        """Have the engine wake the running loop, and be watched. The first request does so, too.

        Raises: RuntimeError if another loop that is not closed uses this object.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is None:
            self.engine.listen(_weakly(self._wake))
            self._watchdog.start()
        elif not self._loop.is_closed():
            raise RuntimeError("an AsyncLLM serves one event loop at a time")
        self._loop, self._is_woken, self._changed = loop, False, asyncio.Event()
        loop.call_soon(self._deliver)  # what the loop before has left, for which the engine may wait

    # ---------------------------------------------------------------- requests

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | PoolingParams,
        request_id: str,
        *,
        lora_request: None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Generate for one prompt; yield outputs of the kind that its parameters ask for.

        Leaving the loop, or cancelling its task, ends the request. Its id is known, to `abort` too, from when the
        iteration begins, and may be used again when the last output was read or the loop was left.

        Raises: `RequestError`, `QueueFullError`, `EngineDeadError`.
        """
        del trace_headers
        if lora_request is not None:
            refuse("lora_request", lora_request, "is not supported")
        special, rank = adds_special_tokens(tokenization_kwargs), checked_priority(priority)
        with await self._calls.open(request_id) as call:
            preparation = self.prepare([prompt], sampling_params, add_special_tokens=special)
            prepared = await call.prepare(preparation)
            if prepared is None:
                call.close()
                yield aborted_output(request_id, prompt, sampling_params)
                return
            if isinstance(prepared[0], RequestError):
                raise prepared[0]
            generation = self.start([prepared[0]], request_id, priority=rank)
            try:
                async for _, output in generation:
                    if output.finished:
                        call.close()
                    yield output
            finally:
                generation.close()

    async def encode(
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str, **options: Any
    ) -> AsyncIterator[EmbeddingRequestOutput]:
        """Embed one prompt; yield one output. Options and errors are those of `generate`."""
        async for output in self.generate(prompt, pooling_params, request_id, **options):
            yield embedding_output(output)

    async def prepare(
        self, prompts: Sequence[Prompt], params: SamplingParams | PoolingParams, *, add_special_tokens: bool = True
    ) -> list[EngineInput | RequestError]:
        """Check and tokenise prompts, long ones off the loop; return for each its input, or why it cannot be served.

        Raises: `QueueFullError`, `EngineDeadError`.
        """
        self.check_admission(len(prompts))
        self.attach()
        self._num_preparing += len(prompts)
        try:
            await self._until_resumed()
            options: dict[str, Any] = {"add_special_tokens": add_special_tokens, "raise_queue_full": True}
            prepare = partial(self.engine.prepare, prompts, [params] * len(prompts), **options)
            prepared = await self._off_loop.prepare(prompts, params, prepare)
            await self._until_resumed()  # a pause may have begun meanwhile
            return prepared
        finally:
            self._num_preparing -= len(prompts)

    async def call_off_loop(self, call: Callable[[], Result]) -> Result:
        """Run something that takes a while, such as tokenising, on one of the threads for it."""
        return await self._off_loop.call(call)

    def start(
        self, inputs: Sequence[EngineInput], request_id: str, *, priority: int = 0, timeout: float | None = None
    ) -> Generation:
        """Queue prepared prompts, which start together; return what to iterate for their outputs.

        Args:
            request_id: what the outputs will say; it need not be unique.
            timeout: seconds until the requests are ended with `RequestTimeoutError`.

        Raises: `EngineDeadError`.
        """
        self._check_open()
        self.attach()
        keys = [str(next(self._ordinals)) for _ in inputs]
        generation = Generation(self.engine, keys, request_id, self._forget)
        self.engine.add_inputs([(key, source, priority) for key, source in zip(keys, inputs, strict=True)])
        self._generations.update(dict.fromkeys(keys, generation))
        if timeout is not None:
            limit = f"{timeout:g} seconds; request_timeout is the limit"
            generation.set_deadline(timeout, RequestTimeoutError(f"the request took more than {limit}."))
        return generation

    def check_admission(self, num_prompts: int) -> None:
        """Raise `QueueFullError` if so many more requests may not wait; `EngineDeadError` if none is served."""
        self._check_open()
        num_waiting = self.num_waiting
        if self._max_queued is not None and num_waiting and num_waiting + num_prompts > self._max_queued:
            self.engine.count_rejection()
            limit = f"at most {self._max_queued} may (max_num_queued_reqs)"
            raise QueueFullError(f"{counted(num_waiting, 'request')} in the queue, and {limit}; try again later.")

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests early: their readers get a last output with `finish_reason` "abort". Unknown ids are ignored."""
        wanted = {request_id} if isinstance(request_id, str) else set(request_id)
        self._calls.end_preparations(wanted)
        self.engine.end_request([key for key, entry in self._generations.items() if entry.request_id in wanted])

    @property
    def num_waiting(self) -> int:
        """Requests that no step has computed anything of yet."""
        return self.engine.num_waiting + self._num_preparing

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended, queued or being prepared."""
        return len(self._generations) + self._num_preparing

    # ---------------------------------------------------------------- pause and end

    async def pause_generation(
        self, *, mode: PauseMode = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Take no new requests until `resume_generation`: `prepare` and `generate` wait. Returns once all is still.

        Args:
            mode: what happens to those that run: "abort" ends them with what they have, and those of `generate` that
                wait to be queued, "wait" lets them end, "keep" stops them where they are. No reader is waited for.
            wait_for_inflight_requests: vLLM's older name for "wait".
            clear_cache: forget all cached prefixes, unless requests are kept.
        Raises: `RequestError` for another mode; `EngineDeadError`, also while a `drain` lets requests end.
        """
        mode = "wait" if wait_for_inflight_requests else mode
        if mode not in get_args(PauseMode):
            refuse("mode", mode, 'must be "abort", "wait" or "keep"')
        self._check_open()
        self.attach()
        pause = self._pause = self._pause or object()
        self.engine.set_paused(mode == "keep")
        if mode == "abort":
            self._calls.end_preparations()
            self.engine.end_request(list(self._generations))
        if mode != "keep":
            await self._until(lambda: self._pause is not pause or all(map(self.engine.has_ended, self._generations)))
        if self._pause is pause:  # not resumed meanwhile
            clears = clear_cache and mode != "keep"
            await self._off_loop.ask(self.engine.reset_prefix_cache if clears else self.engine.end_step)

    async def resume_generation(self) -> None:
        """Go on after `pause_generation`."""
        self.engine.set_paused(False)
        self._pause = None
        self._changed.set()

    async def is_paused(self) -> bool:
        """Whether new requests are held up."""
        return self._pause is not None

    async def drain(self, timeout: float) -> None:
        """Refuse new requests, let those that run end, a pause or not; after a time end them with an error."""
        self._refuse_all("the engine is shutting down.")
        with suppress(EngineDeadError):
            self.engine.set_paused(False)
        try:
            await asyncio.wait_for(self._until(lambda: not self._generations), timeout)
        except asyncio.TimeoutError:
            self._stop_all("the engine is shutting down, and the request took too long to be waited for.")

    def shutdown(self, timeout: float | None = None) -> None:
        """As `close`; vLLM's name for it."""
        del timeout
        self.close()

    def close(self) -> None:
        """Stop what runs, end the threads, free the memory; readers get an error. Idempotent."""
        self._is_closed = True
        self._refusal = self._refusal or "the engine was closed; create a new one."
        self._watchdog.stop()
        self._off_loop.close()
        self.engine.close()

    # ---------------------------------------------------------------- health and facts

    async def check_health(self) -> None:
        """Raise `EngineDeadError` if the engine has failed, was closed, or has not moved for seconds."""
        self._check_open()
        self.engine.check_alive()
        if self._watchdog.is_stuck:
            raise EngineDeadError(f"the engine has computed nothing for {DOUBT_SECONDS:g} seconds.")

    async def snapshot(self) -> EngineSnapshot:
        """Return what the engine is like between two steps; requests have the ids that they were started with.

        Who asks while one is taken gets the same. Raises: `EngineDeadError`, also where it has not moved for seconds.
        """
        await self.check_health()
        return await self._snapshots(self._take_snapshot)

    async def _take_snapshot(self) -> EngineSnapshot:
        names = _request_ids(self._generations)  # those that end meanwhile are looked up before, those that start after
        taken = await self._off_loop.ask(self.engine.snapshot)
        return taken.with_request_ids({**names, **_request_ids(self._generations)})

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns whether that was possible: not while requests run."""
        self._check_open()
        return await self._off_loop.ask(self.engine.reset_prefix_cache)

    # ---------------------------------------------------------------- the loop's side of the engine's thread

    def _wake(self) -> None:
        """On the engine's thread: have the loop look, unless it is about to."""
        if not self._is_woken:
            self._is_woken = True
            self._call_soon(self._deliver)

    def _call_soon(self, call: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None, "requests were started"
        with suppress(RuntimeError):  # the loop has ended, and with it whoever would have read
            self._loop.call_soon_threadsafe(call, *args)

    def _deliver(self) -> None:
        self._is_woken = False
        try:
            for key in self.engine.collect():
                generation = self._generations.get(key)
                if generation is not None:
                    generation.deliver(key)
            self._changed.set()  # behind the readers, who go first
            self.engine.check_alive()  # its end may have come with its last results, and wakes nobody again
        except EngineDeadError as error:
            self._fail(str(error))

    def _report_hang(self) -> None:
        """On the watchdog's thread: tell the loop."""
        logger.error("the engine has computed nothing for too long: a step hangs")
        self._call_soon(self._fail, "the engine hangs: a step has made no progress for too long.")

    def _fail(self, reason: str) -> None:
        self._refuse_all(reason)
        self._stop_all(reason)
        if not (self.errored or self._is_closed):
            self.errored = True
            self.on_failure()

    def _refuse_all(self, reason: str) -> None:
        """Take no request any more, nor one that a pause holds up."""
        self._refusal = self._refusal or reason
        self._pause = None
        self._changed.set()

    def _stop_all(self, reason: str) -> None:
        for generation in set(self._generations.values()):
            generation.stop(EngineDeadError(reason))

    def _forget(self, generation: Generation, unfinished: set[str]) -> None:
        for key in generation.keys:
            self._generations.pop(key, None)
        self._changed.set()
        with suppress(EngineDeadError):
            self.engine.abort_request(unfinished)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the end of a request or a pause brings about."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _until_resumed(self) -> None:
        await self._until(lambda: self._pause is None)
        self._check_open()

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise EngineDeadError(self._refusal)


def _request_ids(generations: Mapping[str, Generation]) -> dict[str, str]:
    """Return what each request was called when it was started, by the engine's id."""
    return {key: generation.request_id for key, generation in generations.items()}


def _weakly(method: Callable[[], Result]) -> Callable[[], Result | None]:
    """Return what calls a method as long as its object lives: other threads are not to keep an engine alive."""
    reference = weakref.WeakMethod(method)

    def call() -> Result | None:
        alive = reference()
        return None if alive is None else alive()

    return call


AsyncLLMEngine = AsyncLLM
"""vLLM's older name for it."""
