"""An engine under an experiment: runs requests that arrive at given moments, and keeps what each step was like."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.bench.workload import ordinary_token_ids
from octavo.config import EngineConfig
from octavo.core.request import RequestStatus
from octavo.errors import RequestError
from octavo.frontend.build import BuiltEngine, EnginePolicies, build
from octavo.observe.events import StepFinished, StepPlanned
from octavo.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from octavo.core.scheduler import Scheduler
    from octavo.frontend.input_processor import Prompt
    from octavo.observe.events import Event
    from octavo.outputs import RequestOutput


@dataclass(frozen=True, slots=True)
class LabRequest:
    """One request; the end of text is ignored, and the choice greedy."""

    prompt_token_ids: Sequence[int]
    output_len: int
    """Tokens of its answer."""
    num_padding: int = 0
    """Tokens generated after those and thrown away: its row of a batch that nobody leaves before the end."""
    is_streamed: bool = False
    """Whether its tokens are wanted one by one, and stamped."""
    arrives_after: int = 0
    """It arrives when the streamed requests have shown so many tokens together."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step as it was planned, and when it ended.

    Units: seconds since the run began; lengths in tokens.
    """

    began_at: float
    ended_at: float
    num_running: int
    num_useful: int
    """Of the running requests, those whose answer is not complete."""
    num_waiting: int
    num_tokens: int
    """Rows computed."""
    num_decode_tokens: int
    num_used_blocks: int
    """Blocks that running requests hold, each counted once."""
    allocated: int
    """Room in the blocks that running requests hold."""
    stored: int
    """Of it, what holds keys and values after this step."""
    to_come: int
    """Of the rest, what the same requests will fill later. What remains is never filled."""


@dataclass(slots=True)
class LabRun:
    """What happened."""

    seconds: float
    samples: Sequence[StepSample]
    token_ids: list[list[int]]
    """The answer of each request, in the order given."""
    stamps: list[list[float]]
    """Of each streamed request, when its tokens came; in seconds since the run began."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Of them, found in the prefix cache."""
    num_preemptions: int
    first_token_s: list[float]
    """Of each request, from arrival to its first token."""

    @property
    def num_output_tokens(self) -> int:
        """Generated, over all requests."""
        return sum(map(len, self.token_ids))

    @property
    def output_tokens_per_s(self) -> float:
        """Over the whole run."""
        return self.num_output_tokens / self.seconds


class StepWatcher:
    """An event sink that looks at the scheduler's requests at each plan, on the engine's thread."""

    enabled = True
    wants_steps = True
    wants_blocks = False

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        """Set before the first request."""
        self._samples: list[StepSample] = []
        self._planned: tuple[StepPlanned, float, tuple[int, int, int, int]] | None = None
        self._started_at = 0.0
        self._requests: Sequence[LabRequest] = ()

    def emit(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, StepPlanned):
            self._planned = event, time.perf_counter(), self._look()
        elif isinstance(event, StepFinished) and self._planned is not None:
            plan, began_at, (num_useful, allocated, stored, to_come) = self._planned
            self._samples.append(
                StepSample(
                    began_at - self._started_at,
                    time.perf_counter() - self._started_at,
                    plan.num_running,
                    num_useful,
                    plan.num_waiting,
                    plan.num_tokens,
                    plan.num_decode_tokens,
                    plan.num_used_blocks,
                    allocated,
                    stored,
                    to_come,
                )
            )

    def restart(self, requests: Sequence[LabRequest], now: float) -> None:
        """Forget all samples; `requests`, by number, are about to run. While the engine is idle."""
        self._requests, self._samples, self._started_at = requests, [], now

    def take(self) -> Sequence[StepSample]:
        """Return the samples since `restart`. While the engine is idle."""
        return self._samples

    def _look(self) -> tuple[int, int, int, int]:
        """Count useful requests; the room that all hold, what of it is filled after this step, and what will be."""
        num_useful = allocated = stored = to_come = 0
        assert self.scheduler is not None, "it is set before the first request"
        for request in self.scheduler.roster.running:
            if request.status is not RequestStatus.RUNNING or request.blocks is None:
                continue
            num_useful += request.num_output_tokens < self._requests[_number(request.request_id)].output_len
            filled = request.num_computed_tokens + request.num_scheduled_tokens
            at_end = request.prompt_len + request.max_tokens - 1  # the last token's keys are never needed
            allocated += request.blocks.num_slots
            stored += filled
            to_come += min(at_end, request.blocks.num_slots) - filled
        return num_useful, allocated, stored, to_come


@dataclass(slots=True)
class LabEngine:
    """One engine with the policies of an experiment. A context manager.

    Prefix caching is off unless the options say otherwise.
    """

    model: str
    options: dict[str, Any]
    policies: EnginePolicies = field(default_factory=EnginePolicies)
    built: BuiltEngine = field(init=False)
    _watcher: StepWatcher = field(default_factory=StepWatcher)

    def __enter__(self) -> LabEngine:
        config = EngineConfig(self.model, **{"enable_prefix_caching": False, **self.options})
        self.built = build(config, events=self._watcher, policies=self.policies)
        self._watcher.scheduler = self.built.scheduler
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.built.engine.close()

    def run(self, requests: Sequence[LabRequest]) -> LabRun:
        """Serve all requests.

        Raises: `RequestError` if one of them cannot be served.
        """
        engine = self.built.engine
        outputs: dict[int, RequestOutput] = {}
        stamps: list[list[float]] = [[] for _ in requests]
        pending = sorted(range(len(requests)), key=lambda index: requests[index].arrives_after)
        num_shown = 0
        started = time.perf_counter()
        self._watcher.restart(requests, started)
        while pending or engine.has_unfinished_requests():
            arrived = [index for index in pending if requests[index].arrives_after <= num_shown]
            if not arrived and not engine.has_unfinished_requests():
                arrived = pending[:1]  # what it waits for will not come
            if arrived:
                self._add(arrived, requests)
                del pending[: len(arrived)]
            for output in engine.step():
                index = int(output.request_id)
                if requests[index].is_streamed:
                    stamps[index].append(time.perf_counter() - started)
                    num_shown += 1
                if output.finished:
                    outputs[index] = output
        seconds = time.perf_counter() - started
        done = [outputs[index] for index in range(len(requests))]
        metrics = [output.metrics for output in done if output.metrics is not None]
        return LabRun(
            seconds=seconds,
            samples=self._watcher.take(),
            token_ids=[
                list(output.outputs[0].token_ids)[: request.output_len]
                for output, request in zip(done, requests, strict=True)
            ],
            stamps=[stamp for stamp, request in zip(stamps, requests, strict=True) if request.is_streamed],
            num_prompt_tokens=sum(len(request.prompt_token_ids) for request in requests),
            num_cached_tokens=sum(output.num_cached_tokens or 0 for output in done),
            num_preemptions=sum(stats.num_preemptions for stats in metrics),
            first_token_s=[stats.first_token_ts - stats.queued_ts for stats in metrics],
        )

    def _add(self, indexes: Sequence[int], requests: Sequence[LabRequest]) -> None:
        """Queue requests that start together."""
        prompts: list[Prompt | RequestError] = [
            {"prompt_token_ids": list(requests[index].prompt_token_ids)} for index in indexes
        ]
        prepared = self.built.engine.prepare(prompts, [_params(requests[index]) for index in indexes])
        inputs = []
        for index, entry in zip(indexes, prepared, strict=True):
            if isinstance(entry, RequestError):
                raise entry
            inputs.append((str(index), entry, 0))
        self.built.engine.add_inputs(inputs)

    def random_prompt(self, length: int, seed: int) -> list[int]:
        """Return that many ids of tokens of text, the same for the same seed."""
        return random.Random(seed).choices(ordinary_token_ids(self.built.engine.tokenizer), k=length)


def _params(request: LabRequest) -> SamplingParams:
    kind = RequestOutputKind.CUMULATIVE if request.is_streamed else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        temperature=0.0, max_tokens=request.output_len + request.num_padding, ignore_eos=True, output_kind=kind
    )


def _number(core_id: str) -> int:
    """Return a request's number in the run: the core adds the order of arrival to the id."""
    return int(core_id.partition("#")[0])
