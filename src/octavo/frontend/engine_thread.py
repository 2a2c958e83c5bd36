"""The thread that runs the engine core, and the two queues between it and the callers: the inbox and the outbox.

Callers post work and wait interruptibly, so that detokenising overlaps the next step, and Ctrl-C is seen at once.
Both queues are C code without a lock that an interrupt could leave held. The thread needs the GIL only between kernels.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from octavo.errors import EngineDeadError

if TYPE_CHECKING:
    from octavo.core.executor import Executor
    from octavo.core.step import EngineCoreOutput

logger = logging.getLogger("octavo")

Result = TypeVar("Result")

_SIGNAL_CHECK_SECONDS = 0.05
"""How often a waiting caller looks around; signals interrupt the wait at once where the system can."""
_CLOSE_SECONDS = 10.0
"""What a step that was cancelled may take until it ends; it looks after every op."""
_MOST_AHEAD = 8
"""Steps whose results nobody has taken yet: then the thread waits, so that they cannot fill the memory."""
_CANCEL_AGAIN_SECONDS = 0.01
"""A cancel that falls between two steps is lost, so it is repeated until the engine answers."""


class SteppedCore(Protocol):
    """What the thread needs of the engine core."""

    executor: Executor
    """Whose `on_submit` tells of the last step's results while the next one is computed."""

    def has_unfinished(self) -> bool:
        """Whether `advance` would do something."""
        ...

    def advance(self) -> list[EngineCoreOutput]:
        """Run one step; return what there is to tell."""
        ...

    def cancel(self) -> None:
        """Stop the running step soon. Safe from any thread."""
        ...

    def shutdown(self) -> None:
        """Free threads and memory."""
        ...


class StepResult(NamedTuple):
    """What one step made."""

    outputs: list[EngineCoreOutput]
    ended_at: float
    """Monotonic seconds."""


class EngineThread:
    """Runs steps while there are unfinished requests; between two steps, runs what was posted. Idle, it sleeps.

    Args:
        core: used by this thread only, from now on.
    """

    def __init__(self, core: SteppedCore) -> None:
        self._core = core
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[StepResult | None] = queue.SimpleQueue()
        self._on_result: Callable[[], None] | None = None
        self._has_news = False
        """Whether there are results that `_on_result` was not called for."""
        core.executor.on_submit = self._tell
        self._fault: BaseException | None = None
        self._closed = False
        self._is_paused = False
        self._is_asleep = True
        self._is_held_up = False
        """Whether the thread waits, or is about to, for results to be taken."""
        self._num_turns = 0
        """Of the loop: it moves between steps, the executor's counter within them."""
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)

    def start(self) -> None:
        """Start to serve. An engine that is closed before it was started never runs."""
        self._thread.start()

    def listen(self, on_result: Callable[[], None]) -> None:
        """Have `on_result` called, on this thread, when there is a new result and when the thread ends.

        That is when the next step has been planned: who is woken sooner takes the GIL from this thread just when it
        needs it, and the processors would idle meanwhile.
        """
        self._on_result = on_result

    def post(self, call: Callable[[], None]) -> None:
        """Have `call` run between two steps. It must not raise."""
        self.check_alive()
        self._inbox.put(call)

    def ask(self, call: Callable[[], Result], *, cancel_step: bool = False) -> Result:
        """Have `call` run between two steps and return what it returns.

        Args:
            cancel_step: stop the running step instead of waiting for its end.
        """
        self.check_alive()
        answer: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

        def answering() -> None:
            try:
                answer.put((call(), None))
            except BaseException as error:
                answer.put((None, error))

        self._inbox.put(answering)
        while True:
            if cancel_step:
                self._core.cancel()
            try:
                result, error = answer.get(timeout=_CANCEL_AGAIN_SECONDS if cancel_step else _SIGNAL_CHECK_SECONDS)
            except queue.Empty:
                self.check_alive()
                continue
            if error is not None:
                raise error
            return result  # type: ignore[return-value]

    def next_result(self) -> StepResult | None:
        """Wait for the next step that made something, oldest first; None if that takes more than a moment.

        Raises: `EngineDeadError` if the engine was closed or has failed.
        """
        try:
            result = self._outbox.get(timeout=_SIGNAL_CHECK_SECONDS)
            self._let_go_on()
        except queue.Empty:
            result = None
        if result is None:
            self.check_alive()
        return result

    def take_results(self) -> list[StepResult]:
        """Return the results that are there, oldest first, without waiting.

        Raises: `EngineDeadError` if there are none and the engine was closed or has failed.
        """
        results: list[StepResult] = []
        while not self._outbox.empty():
            result = self._outbox.get()
            if result is not None:
                results.append(result)
        self._let_go_on()
        if not results:
            self.check_alive()
        return results

    def _let_go_on(self) -> None:
        if self._is_held_up:
            self._inbox.put(_do_nothing)

    def set_paused(self, is_paused: bool) -> None:
        """Run no steps until told to go on; what is posted still runs."""

        def set_paused() -> None:
            self._is_paused = is_paused

        self.post(set_paused)

    def hand_out(self, outputs: list[EngineCoreOutput]) -> None:
        """Make a result of what was made between two steps. For calls that were posted, on this thread."""
        if outputs:
            self._put(StepResult(outputs, time.monotonic()))

    def heartbeat(self) -> int | None:
        """Return a number that changes as long as the thread works; None while it has nothing to do, or has ended."""
        return None if self._is_asleep else self._num_turns

    def check_alive(self) -> None:
        """Raise `EngineDeadError` unless the thread can serve."""
        if os.getpid() != self._owner:
            raise EngineDeadError("the engine belongs to the parent process; create one in this process.")
        if self._fault is not None:
            raise EngineDeadError(f"the engine has failed: {self._fault!r}; create a new one.") from self._fault
        if self._closed:
            raise EngineDeadError("the engine was closed; create a new one.")

    def close(self) -> None:
        """Stop the running step, end the thread, free memory and threads. Idempotent; nothing in a forked child.

        A step that hangs is left behind after a while, with its thread and memory, and logged.
        """
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self._inbox.put(None)
        if threading.current_thread() is self._thread:
            return  # the engine's last user went while this thread ran a call of theirs: it ends after that
        end = time.monotonic() + _CLOSE_SECONDS
        while self._thread.is_alive():
            if time.monotonic() >= end:
                logger.error("the engine's thread has not ended within %g s: a step hangs", _CLOSE_SECONDS)
                return
            self._core.cancel()
            self._thread.join(_CANCEL_AGAIN_SECONDS)

    def _run(self) -> None:
        try:
            while self._take_calls():
                outputs = self._core.advance()
                self._tell()  # of the step before, where no other began
                if outputs:
                    self._put(StepResult(outputs, time.monotonic()))
        except BaseException as error:
            logger.exception("the engine has failed")
            self._fault = error
        finally:
            self._is_asleep = True
            self._put(None)
            self._tell()
            self._core.shutdown()

    def _put(self, result: StepResult | None) -> None:
        self._outbox.put(result)
        self._has_news = True

    def _tell(self) -> None:
        if self._has_news:
            self._has_news = False
            if self._on_result is not None:
                self._on_result()

    def _take_calls(self) -> bool:
        """Run what was posted; sleep while there is nothing to do. Returns whether to go on."""
        self._num_turns += 1
        while self._must_wait() or not (self._inbox.empty() and self._core.has_unfinished()):
            self._is_asleep = self._inbox.empty()
            if self._is_asleep:
                self._tell()
            call = self._inbox.get()
            self._is_asleep = False
            if call is None:
                return False
            call()
            del call  # else, while it sleeps, it would keep alive what this holds: the engine, for one
        return True

    def _must_wait(self) -> bool:
        self._is_held_up = True  # first, so that who takes a result from now on says so
        self._is_held_up = self._outbox.qsize() >= _MOST_AHEAD
        return self._is_paused or self._is_held_up


def _do_nothing() -> None:
    """Wake the thread."""
