"""Runs the server until it is told to stop: start, signals, drain, and what a failed engine means for the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from octavo.frontend.async_engine import AsyncLLM
from octavo.server.app import make_app, make_state
from octavo.server.connection import impatient_protocol

if TYPE_CHECKING:
    from socket import socket

    from starlette.types import ASGIApp

    from octavo.frontend.llm_engine import LLMEngine
    from octavo.server.options import ServerOptions
    from octavo.server.protocol.limits import RequestLimits
    from octavo.server.state import ServerState

logger = logging.getLogger("octavo.server")

_GIL_SLICE_SECONDS = 0.0002
"""How long the event loop may keep the engine's thread waiting between two kernels; Python's default is 5 ms."""
_TELL_SECONDS = 1.0
"""After a failure: time for the errors to reach the clients."""
_MIN_UPTIME_SECONDS = 10.0
"""A process that failed sooner after its start would fail again: it is not restarted."""
_EVERYWHERE = frozenset({"0.0.0.0", "::", ""})
"""Hosts that are every address of the machine, which no browser can open."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """Drains on the first signal, ends the process on the second."""

    def __init__(self, config: uvicorn.Config, llm: AsyncLLM, options: ServerOptions) -> None:
        super().__init__(config)
        self._llm = llm
        self._shutdown_timeout = options.shutdown_timeout
        self._has_dashboard = not options.disable_dashboard
        self._signal: int | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Listen to signals while serving. Then they have done their work: they are not raised again."""
        old = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        del frame
        if self._signal is not None:
            os._exit(128 + sig)
        self._signal = sig
        self.should_exit = True

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to listen, and say where the dashboard is."""
        await super().startup(sockets)
        if self._has_dashboard and self.started and self.config.uds is None:
            logger.info("dashboard: %s", self._dashboard_url())

    def _dashboard_url(self) -> str:
        scheme = "https" if self.config.is_ssl else "http"
        port = self.servers[0].sockets[0].getsockname()[1]
        host = "localhost" if self.config.host in _EVERYWHERE else self.config.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/dashboard"

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Let running requests end, then those that have not get an error."""
        logger.info("shutting down: running requests have %g seconds to end", self._shutdown_timeout)
        drain = asyncio.ensure_future(self._llm.drain(self._shutdown_timeout))
        await super().shutdown(sockets)
        await drain


def run_server(engine: LLMEngine, options: ServerOptions, limits: RequestLimits, model: str) -> int:
    """Serve until a signal comes or the engine fails; return the process's exit status.

    Args:
        model: the name to serve it under, where the options give no other.
    """
    sys.setswitchinterval(_GIL_SLICE_SECONDS)
    _allow_many_connections()
    llm = AsyncLLM(engine, max_num_queued_reqs=options.max_num_queued_reqs, hang_seconds=options.engine_hang_timeout)
    started = time.monotonic()
    state = make_state(llm, options, limits, model)
    _introduce(engine, state)
    asyncio.run(_serve(llm, options, state))
    if not llm.errored:
        llm.close()
        return 0
    logging.shutdown()
    if options.on_engine_failure == "restart" and time.monotonic() - started >= _MIN_UPTIME_SECONDS:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    os._exit(1)  # a thread that hangs cannot be waited for


def _introduce(engine: LLMEngine, state: ServerState) -> None:
    form, capacity = state.context.output_format, engine.kv_cache_stats().capacity_bytes
    logger.info(
        "model %s: context of %s tokens, KV cache of up to %.2f GiB, form of calls: %s, of thoughts: %s",
        ", ".join(state.context.model_names),
        f"{engine.max_model_len:,}",
        capacity / 2**30,
        form.tools or "not known",
        form.reasoning or "none",
    )
    if form.hides_tools and form.tools is not None:
        logger.warning("the chat template says nothing of tools: the model will not see those of requests")


def _allow_many_connections() -> None:
    """Open as many files as the system lets this process, where its limit is often a thousand unless it asks."""
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ImportError, ValueError, OSError):
        return  # not on this system


async def _serve(llm: AsyncLLM, options: ServerOptions, state: ServerState) -> None:
    server = Server(_uvicorn_config(make_app(state), options), llm, options)

    def stop_after_failure() -> None:
        logger.error("the engine has failed: the server ends")
        asyncio.get_running_loop().call_later(_TELL_SECONDS, setattr, server, "should_exit", True)

    llm.on_failure = stop_after_failure
    llm.attach()
    if llm.engine.tokenizer.chat_template is not None:
        await state.model_templates.start()
    statistics = asyncio.ensure_future(state.metrics.log_forever(llm))
    try:
        await server.serve()
    finally:
        statistics.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await statistics
        await state.model_templates.close()
        await state.foreign_templates.close()


def _uvicorn_config(app: ASGIApp, options: ServerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        uds=options.uds,
        http=impatient_protocol(options.receive_timeout, options.send_timeout),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=options.uvicorn_log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        root_path=options.root_path,
        ssl_keyfile=options.ssl_keyfile,
        ssl_certfile=options.ssl_certfile,
        ssl_ca_certs=options.ssl_ca_certs,
        ssl_cert_reqs=options.ssl_cert_reqs,
        h11_max_incomplete_event_size=options.max_header_bytes,
        timeout_graceful_shutdown=int(options.shutdown_timeout) + 2,
    )
