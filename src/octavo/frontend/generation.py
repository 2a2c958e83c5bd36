"""One caller's requests while they run: what `AsyncLLM` hands out, to be iterated for outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.outputs import RequestOutput


class Generation:
    """Yields (index of the prompt, output) until all its requests have ended. For the event loop's thread only.

    An output is made when it is asked for, of everything that came since the last: a slow reader gets fewer, larger
    ones, and nothing piles up.

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
        self._error: BaseException | None = None
        self._news = asyncio.Event()
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

        Raises: what `stop` was called with.
        """
        try:
            while True:
                if self._error is not None:
                    raise self._error
                while self._ready:
                    key = next(iter(self._ready))
                    del self._ready[key]
                    output = self._engine.take_output(key)
                    if output is None:
                        continue
                    if output.finished:
                        self._running.discard(key)
                    output.request_id = self.request_id
                    return self._index_of[key], output
                if not self._running:
                    self.close()
                    raise StopAsyncIteration
                self._news.clear()
                await self._news.wait()
        except asyncio.CancelledError:
            self.close()
            raise

    def deliver(self, key: str) -> None:
        """Tell that a request has something to show."""
        self._ready[key] = None
        self._news.set()

    def stop(self, error: BaseException) -> None:
        """End all requests; the reader gets `error`."""
        if not self._has_ended:
            self._error = error
            self._news.set()
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
