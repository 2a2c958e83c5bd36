"""ROLE 1: the loop. Takes requests and aborts between steps, runs a step at a time, and goes on when a step fails.

All of it is for one thread, but `check_fits` and `cancel`, which are safe from any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.core.scheduler import StalledError
from octavo.errors import EngineDeadError, StepCancelledError

if TYPE_CHECKING:
    from octavo.core.executor import Executor
    from octavo.core.request import Request
    from octavo.core.scheduler import Scheduler
    from octavo.core.step import EngineCoreOutput

MaskSource = Callable[[], object]
"""Returns the allowed-token bits of the open step's logit rows, or None; works while the step is computed."""


class EngineCore:
    """Control plane and data plane, put together by `step`."""

    def __init__(self, scheduler: Scheduler, executor: Executor, *, masks: MaskSource = lambda: None) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._masks = masks
        self._outputs: list[EngineCoreOutput] = []
        """Not yet returned."""
        self._is_alive = True

    def step(self) -> list[EngineCoreOutput]:
        """Run one step. The two planes meet here and nowhere else.

        Raises: what made the step fail; the plan is then still open, and `advance` undoes it.
        """
        plan = self.scheduler.schedule()
        handle = self.executor.submit(plan)
        masks = self._masks()
        result = self.executor.sample(handle, masks)
        return self.scheduler.update(plan, result)

    def advance(self) -> list[EngineCoreOutput]:
        """Run one step if there is work; return what came of it, and of aborts since the last.

        A step that fails costs only the request that made it fail, which ends with "error"; finding it takes some
        steps. A cancelled step is computed again at the next call.

        Raises: `EngineDeadError` after `shutdown`; KeyboardInterrupt and its like, after undoing the step.
        """
        self._check_alive()
        scheduler = self.scheduler
        if len(scheduler.roster):
            try:
                self._outputs += self.step()
            except StalledError as error:
                self._outputs += scheduler.end_stalled(error)
            except StepCancelledError:
                scheduler.cancel_step()
            except Exception as error:
                if not scheduler.has_open_step:
                    raise  # a fault of the scheduler itself, not of a request
                self._outputs += scheduler.fail_step(error)
            except BaseException:
                if scheduler.has_open_step:
                    scheduler.cancel_step()
                raise
        outputs, self._outputs = self._outputs, []
        return outputs

    def has_unfinished(self) -> bool:
        """Whether `advance` has anything to do or to return."""
        return bool(self._outputs or len(self.scheduler.roster))

    def check_fits(self, prompt_len: int, max_tokens: int | None) -> int:
        """Return the `max_tokens` that a request of this prompt gets; None means as many as fit.

        Raises: `RequestError` if the request could not be served even alone; the message has the numbers.
        """
        return self.scheduler.admission.check_fits(prompt_len, max_tokens)

    def add_request(self, request: Request) -> None:
        """Let a request wait for its first step.

        Mutates: the scheduler, request.
        Raises: `RequestError` if it can never fit; `EngineDeadError` after `shutdown`.
        """
        self._check_alive()
        request.max_tokens = self.check_fits(request.prompt_len, request.max_tokens)
        assert request.request_id not in self.scheduler.roster, "the frontend uses no id twice"
        self.scheduler.add(request)

    def abort_request(self, request_id: str) -> None:
        """End all completions of a request with "abort", which `advance` tells. Unknown ids are ignored.

        Mutates: the scheduler, self.
        """
        self._outputs += self.scheduler.abort(request_id)

    def cancel(self) -> None:
        """Stop the step that is being computed. Its members are recomputed at the next one, unless aborted before."""
        self.executor.cancel()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; false, and nothing done, while requests use some.

        Mutates: the KV cache manager.
        """
        return self.scheduler.manager.reset_prefix_cache()

    def shutdown(self) -> None:
        """Stop for good; idempotent. Requests that have not ended are dropped without an output.

        Mutates: self, the executor.
        """
        self._is_alive = False
        self.executor.shutdown()

    def _check_alive(self) -> None:
        """Raise `EngineDeadError` after `shutdown`."""
        if not self._is_alive:
            raise EngineDeadError("the engine was closed; make a new one")
