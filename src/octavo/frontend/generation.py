"""One caller's requests while they run: what `AsyncLLM` hands out, to be iterated for outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.outputs import RequestOutput

MAX_UNREAD = 1 << 16
"""Tokens and logprobs of a streamed request that wait to be read: about 10 MB of logprobs."""


class Generation:
    """Yields (index of the prompt, output) until all its requests have ended. For the event loop's thread only.

    An output is made when it is asked for, of everything that came since the last: a slow reader gets fewer, larger
    ones. One that does not read at all loses the request before its answer takes much memory.

    Args:
        keys: the ids by which the engine knows the requests, in the order of the prompts.
        request_id: what the outputs are to say.
        on_end: called once, with the keys of the requests that have not ended.
    """

    def __init__(
        self, engine: LLMEngine, keys: Iterable[str], request_id: str, on_end: Callable[[Generation, set[str]], None]
    ) -> None:
        self.request_id = request_id
        self._engine = engine
        self._index_of = {key: index for index, key in enumerate(keys)}
        self._on_end = on_end
        self._running = set(self._index_of)
        self._ready: dict[str, None] = {}
        """Keys of requests that have something to show, in order of arrival."""
        self._kept: list[tuple[int, RequestOutput]] = []
        """Taken from the engine when all was stopped, and not read yet."""
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        """Of the reader, while there is nothing for it."""
        self._has_ended = False
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def keys(self) -> Iterable[str]:
        """The engine's ids of all its requests."""
        return self._index_of.keys()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> tuple[int, RequestOutput]:
        """Wait for the next output.

        Raises: what `stop` was called with, if that came before the end, after what was there before.
        """
        try:
            while True:
                if self._kept:
                    return self._kept.pop(0)
                while self._ready:
                    entry = self._take()
                    if entry is not None:
                        return entry
                if not self._running:
                    self.close()
                    raise StopAsyncIteration
                if self._error is not None:
                    raise self._error
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise

    def deliver(self, key: str) -> None:
        """Tell that a request has something to show; end all if too much has not been read."""
        if key in self._ready and self._engine.num_unread(key) > MAX_UNREAD:
            self._ready.clear()
            self.stop(
                RequestError(f"the answer is read too slowly: more than {MAX_UNREAD:,} tokens and logprobs wait.")
            )
            return
        self._ready[key] = None
        self._wake()

    def stop(self, error: BaseException) -> None:
        """End all requests; the reader gets what is there, then `error` unless that was everything."""
        if not self._has_ended:
            self._error = error
            while self._ready:
                entry = self._take()
                if entry is not None:
                    self._kept.append(entry)
            self._wake()
            self.close()

    def set_deadline(self, seconds: float, error: BaseException) -> None:
        """`stop` with an error after a time."""
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.stop, error)

    def close(self) -> None:
        """End what still runs. Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_end(self, self._running)

    def _take(self) -> tuple[int, RequestOutput] | None:
        key = next(iter(self._ready))
        del self._ready[key]
        output = self._engine.take_output(key)
        if output is None:
            return None
        if output.finished:
            self._running.discard(key)
        output.request_id = self.request_id
        return self._index_of[key], output

    def _wake(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None
