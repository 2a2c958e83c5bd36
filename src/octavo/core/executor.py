"""The one door from the control plane to the data plane.

The local executor is one implementation; the tests of `core` use a fake one that has no weights. Executors that span
processes or machines come as others: every message is ints and arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.step import ModelRunnerOutput, SchedulerOutput


@dataclass(frozen=True, slots=True)
class CacheCapacity:
    """How much cache the data plane can hold."""

    ledger_bytes: int
    """Cap on the sum over all groups of (blocks in use or cached) x block bytes."""
    num_blocks: tuple[int, ...]
    """Per group, the size of its id space: ids are 0 .. num_blocks - 1."""


class StepHandle(Protocol):
    """A submitted step."""


class Executor(Protocol):
    """Runs plans. All but `cancel` and `progress` are for the engine thread only."""

    on_submit: Callable[[], None]
    """Called when a step is submitted: who is woken then has its long part to work in."""

    def capacity(self) -> CacheCapacity:
        """Return the cache that the control plane may hand out."""
        ...

    def submit(self, plan: SchedulerOutput) -> StepHandle:
        """Start computing `plan`. May return before the step is done."""
        ...

    def sample(self, handle: StepHandle, masks: object | None) -> ModelRunnerOutput:
        """Wait for the step, then sample its logit rows.

        `masks` are the grammars' allowed-token bits of logit rows, or None.

        Raises: whatever made the step fail; `StepCancelledError` after `cancel`. A failed step has published nothing.
        """
        ...

    def cancel(self) -> None:
        """Ask the running step to stop at the next op. Safe from any thread and from a signal handler."""
        ...

    @property
    def progress(self) -> int:
        """A counter that moves while a step is computed. Safe from any thread."""
        ...

    def release_blocks(self, group: int, block_ids: list[int]) -> None:
        """Give the memory of blocks that the ledger no longer allows back to the system."""
        ...

    def shutdown(self) -> None:
        """Free threads and memory. Idempotent."""
        ...
