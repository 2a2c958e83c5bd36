"""ROLE 2: who runs, and how many tokens. `schedule` decides a step, `update` accounts for it.

There is no prefill phase and no decode phase: each request's `num_computed_tokens` catches up with its tokens. A step
is a transaction. What `schedule` hands out (seats, blocks, tokens of the step) counts once `update` has the result. A
step that failed or was cancelled publishes nothing; its members are preempted and recomputed, to the same bits.

Who runs is decided in planner.py, who may start in admission.py; seats and statuses are kept in roster.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from octavo.core.admission import AdmissionPolicy
from octavo.core.chunking import ChunkSizer
from octavo.core.fault_search import FaultSearch
from octavo.core.planner import StepPlanner
from octavo.core.request import Request, TokenConstraint
from octavo.core.roster import Roster, take_output
from octavo.core.step import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from octavo.core.step_plan import PlannedStep, PlanWriter
from octavo.core.stopping import check_stop
from octavo.observe import events as ev

if TYPE_CHECKING:
    from octavo.config import SchedulerConfig
    from octavo.core.kv_cache_manager import KVCacheManager


class StalledError(Exception):
    """Requests wait and nothing can run: a fault of the engine, since what can never fit is refused at admission."""


class Scheduler:
    """Plans steps and accounts for them."""

    def __init__(
        self,
        config: SchedulerConfig,
        manager: KVCacheManager,
        *,
        admission: AdmissionPolicy | None = None,
        events: ev.EventSink = ev.NULL_SINK,
    ) -> None:
        self._policy = config.policy
        self.manager = manager
        self.roster = Roster(config.max_num_seqs, manager, events)
        self.admission = admission or AdmissionPolicy(config, manager)
        self._chunk_sizer = ChunkSizer(config)
        self._search = FaultSearch()
        self._events = events
        self._planner = StepPlanner(
            config, manager, self.roster, self.admission, self._chunk_sizer, self._search, events
        )
        self._writer = PlanWriter()
        self.num_generated_tokens = 0
        self._step: PlannedStep | None = None
        """The step that is being computed."""

    def add(self, request: Request) -> None:
        """Put a new request, which passed `check_fits`, in the queue. Mutates: self, request."""
        if self._policy == "fcfs":
            request.rank = (0, request.arrival, request.index)
        self.roster.enqueue(request)

    def abort(self, request_id: str) -> list[EngineCoreOutput]:
        """End all completions of a request; an unknown id is one that has ended already.

        Mutates: self. Only between steps.
        """
        completions = self.roster.completions(request_id)
        outputs = [output for request in completions for output in self.roster.end(request, "abort")]
        self.roster.drop_finished()
        return outputs

    def schedule(self) -> SchedulerOutput:
        """Plan one step.

        Mutates: self, the manager, requests; publishes nothing.
        Raises: `StalledError` if there is nothing to compute.
        """
        assert self._step is None, "a step is accounted for before the next is planned"
        roster = self.roster
        roster.step_id += 1
        if self._search.clear_passed():
            roster.preempt(reversed(roster.running), "fault_search")
        requests, forks = self._planner.plan()
        if not requests:
            raise StalledError(f"{len(roster.waiting)} waiting, and none can run")
        self._step = self._writer.write(roster.step_id, roster.released_seats, requests, forks)
        self._step.plan.state_saves = self.manager.states.plan_saves(requests)
        roster.released_seats = []
        if self._events.wants_steps:
            self._emit_planned(self._step)
        return self._step.plan

    def update(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Account for a step that was computed: publish, take the tokens, end what ends.

        Mutates: self, the manager, requests.
        Raises: RuntimeError for a result that does not belong to the plan; the step is then still open.
        """
        step = self._step
        assert step is not None, "a step was planned"
        assert step.plan is plan, "the result is that of the last plan"
        _check_result(step, result)
        self._step = None
        failed = {
            (*step.samplers, *step.scorers, *step.poolers)[row]: reason for row, reason in result.row_errors.items()
        }
        self._publish(step, failed)
        outputs = self._tell_prompt_logprobs(step, result, failed)
        for row, (request, token_id) in enumerate(zip(step.samplers, result.token_ids, strict=True)):
            if request not in failed:
                outputs += self._take_token(request, token_id, result.logprobs[row])
        for request, hidden_sum in zip(step.poolers, result.sums, strict=True):
            if request not in failed:
                outputs.append(take_output(request, "stop"))
                outputs[-1].hidden_sum = hidden_sum
                self.roster.retire(request, "stop", None)
        for request, reason in failed.items():
            outputs += self.roster.end(request, "error", reason)
        self.roster.drop_finished()
        num_decoding = self._planner.num_decoding
        self._chunk_sizer.times.observe(num_decoding, step.num_tokens - num_decoding, result.step_seconds)
        self.manager.pool.trim()
        if self._events.wants_steps:
            seconds = (result.step_seconds, result.native_seconds, result.forward_seconds)
            self._events.emit(ev.StepFinished(plan.step_id, *seconds, tuple(result.token_ids)))
        return outputs

    def _take_token(self, request: Request, token_id: int, logprobs: TokenLogprobs | None) -> list[EngineCoreOutput]:
        """Give a request the token it sampled, and end it if that was the last; return what is to be told now."""
        self.num_generated_tokens += 1
        try:
            request.token_ids.append(token_id)
            request.num_tokens += 1
            if logprobs is not None:
                request.untold_logprobs.append(logprobs)
            stop = check_stop(request)
        except Exception as error:
            # Stop checkers and sampled ids belong to one request; what goes wrong in them ends it alone.
            return self.roster.end(request, "error", error)
        is_told = stop is not None or request.is_streamed or request.num_output_tokens == 1
        outputs = [take_output(request, *(stop or ()))] if is_told else []
        if stop is not None:
            self.roster.retire(request, *stop)
        return outputs

    def _publish(self, step: PlannedStep, failed: Collection[Request]) -> None:
        """Advance the members of a step and publish what they filled, except those whose row failed."""
        for request in step.requests:
            request.num_computed_tokens += request.num_scheduled_tokens
            request.num_scheduled_tokens = 0
            blocks = request.blocks
            assert blocks is not None, "members run until update ends them"
            if request.num_computed_tokens >= blocks.next_commit and request not in failed:
                self.manager.commit(request)
        for parent, children in step.forks.items():
            for child in children:
                child.num_computed_tokens = child.prompt_len
                child.num_cached_tokens = parent.num_cached_tokens
                if child not in failed:
                    self.manager.commit(child)
            if parent.num_unborn:
                # One waits for all that are left, and forks in its turn: n = 4,096 pins nothing.
                heir = parent.spawn()
                heir.num_unborn, parent.num_unborn = parent.num_unborn, 0
                self.roster.enqueue(heir)
        self.manager.states.publish_saves(failed)

    def _tell_prompt_logprobs(
        self, step: PlannedStep, result: ModelRunnerOutput, failed: Collection[Request]
    ) -> list[EngineCoreOutput]:
        """Return what the step scored of prompts, and count it as sent; nothing of requests that failed."""
        outputs = []
        for index, (request, rows) in enumerate(zip(step.scorers, step.plan.prompt_logprob_rows, strict=True)):
            if request not in failed:
                request.num_scored_tokens = rows.first_position + rows.count
                outputs.append(take_output(request))
                outputs[-1].prompt_logprobs = result.prompt_logprobs[index]
        return outputs

    # Steps that were not computed to their end

    @property
    def has_open_step(self) -> bool:
        """Whether a plan was made and not accounted for."""
        return self._step is not None

    @property
    def open_constraints(self) -> list[TokenConstraint | None]:
        """What restricts the token of each logit row of the open step."""
        return [request.constraint for request in self._step.samplers] if self._step else []

    def fail_step(self, error: BaseException) -> list[EngineCoreOutput]:
        """Undo the open step, which raised `error`, and go on with the search for the request that broke it.

        Everyone is preempted, so that the suspects find the whole cache free.
        Mutates: self, the manager, requests.
        """
        reason = f"{type(error).__name__}: {error}"
        members = self._undo_step()
        targets = [request.num_computed_tokens + request.num_scheduled_tokens for request in members]
        guilty = self._search.accuse(list(zip(members, targets, strict=True)))
        self._emit_failed(reason, False, members, guilty)
        outputs = self.roster.end(guilty, "error", reason) if guilty else []
        self.roster.drop_finished()
        self.roster.preempt(reversed(self.roster.running), "step_failed")
        return outputs

    def cancel_step(self) -> None:
        """Undo the open step; its members are recomputed. Mutates: self, the manager, requests."""
        members = self._undo_step()
        self._emit_failed("cancelled", True, members, None)
        self.roster.preempt(reversed(members), "step_cancelled")

    def end_stalled(self, error: StalledError) -> list[EngineCoreOutput]:
        """End the first waiting request, when nothing can run: the others may be served without it.

        Mutates: self.
        """
        waiting = list(self.roster.waiting)
        if self._events.enabled:
            reasons = tuple((request.request_id, request.defer_reason or "unknown") for request in waiting)
            self._events.emit(ev.EngineStalled(self.roster.step_id, reasons))
        return self.roster.end(waiting[0], "error", f"the engine is stalled: {error}")

    def _undo_step(self) -> list[Request]:
        """Take back the open step: children it seated are unborn again. Return its members."""
        step, self._step = self._step, None
        assert step is not None, "a step was planned"
        self.manager.states.drop_saves()
        for parent, children in step.forks.items():
            for child in children:
                self.roster.forget(child)
            parent.num_unborn += len(children)
        self.roster.drop_finished()
        return step.requests

    def _emit_planned(self, step: PlannedStep) -> None:
        event = ev.StepPlanned(
            step_id=step.plan.step_id,
            num_decode_tokens=self._planner.num_decoding,
            num_running=len(self.roster.running),
            num_waiting=len(self.roster.waiting),
            num_used_blocks=self.manager.pool.num_used_paged(),
            num_free_blocks=self.manager.pool.num_free_blocks(),
            num_computed_tokens=tuple([request.num_computed_tokens for request in step.requests]),
            num_scheduled_tokens=tuple([request.num_scheduled_tokens for request in step.requests]),
            seats=tuple([request.seat for request in step.requests]),
            logit_seats=tuple([request.seat for request in step.samplers]),
        )
        self._events.emit(event)

    def _emit_failed(self, reason: str, cancelled: bool, members: list[Request], guilty: Request | None) -> None:
        if self._events.enabled:
            request_ids = tuple(request.request_id for request in members)
            guilty_id = guilty.request_id if guilty else None
            self._events.emit(ev.StepFailed(self.roster.step_id, reason, cancelled, request_ids, guilty_id))


def _check_result(step: PlannedStep, result: ModelRunnerOutput) -> None:
    """Raise RuntimeError unless the result has what the plan asked for, before anything is published."""
    wanted = (len(step.samplers), len(step.samplers), len(step.scorers), len(step.poolers))
    given = (len(result.token_ids), len(result.logprobs), len(result.prompt_logprobs), len(result.sums))
    if given != wanted:
        kinds = "tokens, logprobs, scored prompts, sums"
        raise RuntimeError(f"the step gave ({kinds}) = {given}, the plan asked for {wanted}")
