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
        has_begun = False
        send_more = part_sender(scope, send)
        try:
            async for index, output in generation:
                _check(output)
                events = self._events.chunk(index, output)
                if events and not has_begun:
                    has_begun = True
                    await send_start(send, 200, _EVENT_STREAM, _STREAM_HEADERS)
                if events:
                    await send_more(events)
            last = self._events.end()
        except ClientGoneError:
            raise
        except Exception as error:
            if not has_begun:
                raise
            if not isinstance(error, (ApiError, OctavoError)):
                logger.exception("a stream failed")
            last = self._events.failure(api_error(error))
        if not has_begun:
            await send_start(send, 200, _EVENT_STREAM, _STREAM_HEADERS)
        await send_part(send, last, more=False)


async def _stop_when_gone(receive: Receive, generation: Generation) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.stop(ClientGoneError())


def _check(output: RequestOutput) -> None:
    if output.error is not None:
        raise output_error(output.error)
