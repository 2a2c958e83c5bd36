"""Runs a generation request and sends its answer, whole or as a stream; ends it when the client has gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.responses import Response

from octavo.errors import OctavoError
from octavo.server.connection import part_sender
from octavo.server.http import send_json, send_part, send_start
from octavo.server.protocol.answers import PingedAnswer
from octavo.server.protocol.errors import ApiError, api_error, output_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from octavo.frontend.generation import Generation
    from octavo.outputs import RequestOutput
    from octavo.server.protocol.answers import Answer, WholeAnswer

logger = logging.getLogger("octavo.server")

_EVENT_STREAM = b"text/event-stream; charset=utf-8"
_STREAM_HEADERS = {b"cache-control": b"no-cache", b"x-accel-buffering": b"no"}
"""Proxies are not to hold events back."""
_PING_SECONDS = 10.0
"""After a silence of once or twice that, an API which has an event that says nothing sends it: proxies hang up else."""


class ClientGoneError(Exception):
    """The client has closed the connection."""


class GenerationResponse(Response):
    """Starts the request when it is sent, so that nothing runs for an answer that nobody sends.

    The answer is one body, at the end.

    Args:
        start: queues the request.
        answer: writes what is sent.
    """

    def __init__(self, start: Callable[[], Generation], answer: WholeAnswer) -> None:
        super().__init__()
        self._start = start
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run it. Raises: what ended the request before the answer began."""
        generation = self._start()
        watcher = asyncio.ensure_future(_stop_when_gone(receive, generation))
        try:
            await self._send(generation, scope, send)
        except ClientGoneError:
            return
        finally:
            watcher.cancel()
            generation.close()

    async def _send(self, generation: Generation, scope: Scope, send: Send) -> None:
        del scope
        finished: dict[int, RequestOutput] = {}
        async for index, output in generation:
            _check(output)
            finished[index] = output
        await send_json(send, 200, self._answer.body([finished[index] for index in sorted(finished)]))


class StreamResponse(GenerationResponse):
    """The same, with an answer in events."""

    def __init__(self, start: Callable[[], Generation], answer: Answer) -> None:
        super().__init__(start, answer)
        self._events = answer

    async def _send(self, generation: Generation, scope: Scope, send: Send) -> None:
        """Send events as they come. The answer begins with the first, so that an error before it has its own status."""
        stream = _EventStream(scope, send)
        pings = stream.keep_open(self._events.ping) if isinstance(self._events, PingedAnswer) else None
        try:
            await stream.end(await self._last_events(generation, stream))
        finally:
            if pings is not None:
                pings.cancel()

    async def _last_events(self, generation: Generation, stream: _EventStream) -> bytes:
        """Send all events but the last, which are returned."""
        try:
            async for index, output in generation:
                _check(output)
                events = self._events.chunk(index, output)
                if events:
                    await stream.send(events)
            return self._events.end()
        except ClientGoneError:
            raise
        except Exception as error:
            if not stream.has_begun:
                raise
            if not isinstance(error, (ApiError, OctavoError)):
                logger.exception("a stream failed")
            return self._events.failure(api_error(error))


class _EventStream:
    """Sends events in the order of the calls, which need not wait for each other."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.has_begun = False
        self._send = send
        self._send_more = part_sender(scope, send)
        self._num_sent = 0
        self._turn = asyncio.Lock()

    async def send(self, events: bytes) -> None:
        """Send some; the first begin the answer."""
        self._num_sent += 1
        async with self._turn:
            await self._begin()
            await self._send_more(events)

    async def end(self, events: bytes) -> None:
        """Send the last."""
        async with self._turn:
            await self._begin()
            await send_part(self._send, events, more=False)

    def keep_open(self, ping: Callable[[], bytes]) -> asyncio.Task[None]:
        """Send what `ping` returns whenever nothing was sent for a while; return what to cancel."""

        async def keep_open() -> None:
            while True:
                num_sent = self._num_sent
                await asyncio.sleep(_PING_SECONDS)
                if num_sent == self._num_sent:
                    await self.send(ping())

        return asyncio.ensure_future(keep_open())

    async def _begin(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            await send_start(self._send, 200, _EVENT_STREAM, _STREAM_HEADERS)


async def _stop_when_gone(receive: Receive, generation: Generation) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.stop(ClientGoneError())


def _check(output: RequestOutput) -> None:
    if output.error is not None:
        raise output_error(output.error)
