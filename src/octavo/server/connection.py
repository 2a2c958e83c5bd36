"""HTTP connections: those that cannot be held open by doing nothing, and a short way for the parts of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from octavo.server.http import send_part

if TYPE_CHECKING:
    from starlette.types import Scope, Send


def impatient_protocol(receive_timeout: float, send_timeout: float) -> type[H11Protocol]:
    """Return uvicorn's protocol with two more limits, in seconds.

    Args:
        receive_timeout: until a request's head has arrived, from the start of the connection or the last answer.
        send_timeout: how long a client may read nothing while there is something to read.
    """

    class ImpatientProtocol(H11Protocol):
        """One connection."""

        _head_timer: asyncio.TimerHandle | None = None
        _send_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Wait for a request."""
            super().connection_made(transport)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            """Stop the clocks."""
            for timer in (self._head_timer, self._send_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            """Wait for the next request."""
            self._await_head()
            super().on_response_complete()

        def pause_writing(self) -> None:
            """The client does not read as fast as there is text."""
            super().pause_writing()
            self._send_timer = self.loop.call_later(send_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            """It has read."""
            super().resume_writing()
            if self._send_timer is not None:
                self._send_timer.cancel()

        def _await_head(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
            self._head_timer = self.loop.call_later(receive_timeout, self._drop_if_headless)

        def _drop_if_headless(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.timeout_keep_alive_handler()

    return ImpatientProtocol


def part_sender(scope: Scope, send: Send) -> Callable[[bytes], Awaitable[None]]:
    """Return what sends one more part of a stream that has begun and is not over.

    With 64 streams each token passes here 64 times a step: the layers of the application, which look at the beginning
    and the end of an answer alone, and h11's state, which a part does not change, are left out where that is possible.
    """
    cycle = getattr(scope["state"].get("send"), "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or scope["http_version"] != "1.1":

        async def send_through(part: bytes) -> None:
            await send_part(send, part, more=True)

        return send_through

    async def send_chunk(part: bytes) -> None:
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    return send_chunk
