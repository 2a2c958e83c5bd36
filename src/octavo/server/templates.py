"""Renders chat templates in worker processes, which are stopped when they take too long."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.errors import QueueFullError, RequestError
from octavo.worker_process import LENGTH_BYTES, with_length, worker_command, worker_environment

_MAX_WORKERS = 2
"""So that a template that takes its whole time does not hold up everybody."""
_PATIENCE = 4
"""A worker has a limit of CPU time and ends itself; one that has not after so many times as long is killed."""
_START_SECONDS = 60.0
"""A process that has not done its first job by then never will; on a busy machine Python takes seconds to start."""
_FIRST_JOB = msgspec.json.encode(
    {"seconds": _START_SECONDS, "max_chars": 1, "arguments": {"template": "", "messages": []}}
)
"""Loads what templates need, so that its time does not count as anybody's."""
_EXIT_SECONDS = 2.0
"""A process that is told to end gets so long to do so."""


class _Worker:
    """One process and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None, "pipes were asked for"
        assert process.stdout is not None, "pipes were asked for"
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    @classmethod
    async def start(cls) -> _Worker:
        """Return one that is ready. Raises: `QueueFullError` if the system gives it no memory or no time."""
        pipe = asyncio.subprocess.PIPE
        command = worker_command("octavo.tokenizer.template_worker")
        no_process = "no process for chat templates can be started; try again later."
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=worker_environment())
        except OSError:
            raise QueueFullError(no_process) from None
        worker = cls(process)
        try:
            await asyncio.wait_for(worker.ask(_FIRST_JOB), _START_SECONDS)
        except BaseException as error:
            await worker.stop(0)
            if isinstance(error, (EOFError, OSError, asyncio.TimeoutError)):
                raise QueueFullError(no_process) from None
            raise
        return worker

    async def ask(self, job: bytes) -> bytes:
        """Send a job and wait for its answer. Raises: EOFError or OSError if the process has ended."""
        self._stdin.write(with_length(job))
        await self._stdin.drain()
        length = int.from_bytes(await self._stdout.readexactly(LENGTH_BYTES), "big")
        return await self._stdout.readexactly(length)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    async def stop(self, patience: float) -> int:
        """Let the process end, kill it if it has not after so many seconds; return its status.

        To kill one that is just ending would lose its status.
        """
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), patience)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):  # it has ended in this very moment
                self._process.kill()
        return await self._process.wait()


class TemplateRenderer:
    """Up to two processes, started when they are needed, that render one conversation at a time each.

    Args:
        seconds: CPU time that one conversation may take.
        max_chars: how much a template may write.
    """

    def __init__(self, *, seconds: float, max_chars: int) -> None:
        self._seconds = seconds
        self._max_chars = max_chars
        self._idle: list[_Worker] = []
        self._places = asyncio.Semaphore(_MAX_WORKERS)

    async def start(self) -> None:
        """Start one process now, so that the first conversation need not wait for it."""
        self._idle.append(await _Worker.start())

    async def render(self, arguments: Mapping[str, Any]) -> str:
        """Return the text of a conversation.

        Args:
            arguments: of `chat_template.render_chat`.

        Raises: `RequestError`; `QueueFullError` if all processes are busy for long.
        """
        job = self._encode(arguments)
        try:
            await asyncio.wait_for(self._places.acquire(), self._seconds * _PATIENCE)
        except asyncio.TimeoutError:
            raise QueueFullError("chat templates take all the time there is for them; try again later.") from None
        try:
            answer = msgspec.json.decode(await self._ask(job))
        finally:
            self._places.release()
        if "error" in answer:
            raise RequestError(answer["error"], parameter=answer["parameter"])
        return str(answer["text"])

    async def close(self) -> None:
        """End the processes."""
        idle, self._idle = self._idle, []
        for worker in idle:
            await worker.stop(_EXIT_SECONDS)

    def _encode(self, arguments: Mapping[str, Any]) -> bytes:
        try:
            return msgspec.json.encode(
                {"seconds": self._seconds, "max_chars": self._max_chars, "arguments": dict(arguments)}
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"messages cannot be rendered: {error}.", parameter="messages") from None

    async def _ask(self, job: bytes, *, may_repeat: bool = True) -> bytes:
        worker = await self._free_worker()
        try:
            answer = await asyncio.wait_for(worker.ask(job), self._seconds * _PATIENCE + _EXIT_SECONDS)
        except (EOFError, OSError, asyncio.TimeoutError) as error:
            status = await worker.stop(_EXIT_SECONDS)
            is_late = status == -signal.SIGPROF or isinstance(error, asyncio.TimeoutError)
            if may_repeat and not is_late:
                return await self._ask(job, may_repeat=False)  # somebody has killed it, perhaps before it had the job
            reason = f"ended its process with status {status}"
            if is_late:
                limit = f"{self._seconds:g} seconds of CPU time; the server's option chat_template_timeout is the limit"
                reason = f"takes more than {limit}"
            raise RequestError(f"the chat template {reason}.", parameter="messages") from None
        except BaseException:
            await worker.stop(0)  # it would answer the next job with this one's text
            raise
        self._idle.append(worker)
        return answer

    async def _free_worker(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            await worker.stop(_EXIT_SECONDS)  # somebody else has ended it
        return await _Worker.start()
