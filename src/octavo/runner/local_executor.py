"""The executor of one process: plans run in the calling thread, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from octavo.errors import EngineDeadError
from octavo.runner.model_runner import ModelRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.executor import CacheCapacity, StepHandle
    from octavo.core.step import ModelRunnerOutput, SchedulerOutput
    from octavo.program.forward_batch import AllowedTokens
    from octavo.runner.cache_memory import CacheMemory
    from octavo.runner.input_batch import InputBatch
    from octavo.runner.model_runner import StepProgram


@dataclass(slots=True)
class LocalHandle:
    """A plan whose body has run, or failed."""

    plan: SchedulerOutput
    error: Exception | None = None


class LocalExecutor:
    """Implements `core.executor.Executor` on a program, cache memory and seats that were built for each other."""

    def __init__(self, program: StepProgram, capacity: CacheCapacity, memory: CacheMemory, inputs: InputBatch) -> None:
        self._program = program
        self._capacity = capacity
        self._memory = memory
        self._runner = ModelRunner(program, inputs, memory)
        self._is_shut_down = False
        self.on_submit: Callable[[], None] = lambda: None

    def capacity(self) -> CacheCapacity:
        """Return the cache that the control plane may hand out."""
        return self._capacity

    def submit(self, plan: SchedulerOutput) -> LocalHandle:
        """Run the body of `plan`. What fails is raised by `sample`.

        Raises: `EngineDeadError` after `shutdown`.
        """
        if self._is_shut_down:
            raise EngineDeadError("The engine is closed; make a new one.")
        self.on_submit()
        handle = LocalHandle(plan)
        try:
            self._runner.execute(plan)
        except Exception as error:
            handle.error = error
        return handle

    def sample(self, handle: StepHandle, masks: object | None) -> ModelRunnerOutput:
        """Sample the logit rows of a submitted plan, or raise what made it fail."""
        step = cast("LocalHandle", handle)
        if step.error is not None:
            raise step.error
        return self._runner.sample(step.plan, cast("AllowedTokens | None", masks))

    def cancel(self) -> None:
        """Ask the running step to stop at the next op."""
        self._program.cancel()

    @property
    def progress(self) -> int:
        """A counter that moves while a step is computed."""
        return self._program.progress

    def release_blocks(self, group: int, block_ids: list[int]) -> None:
        """Give the memory of these blocks back to the system."""
        self._memory.release_blocks(group, block_ids)

    def shutdown(self) -> None:
        """Stop the program's threads, then drop the cache's memory. Idempotent."""
        self._is_shut_down = True
        self._program.close()
        self._memory.close()
