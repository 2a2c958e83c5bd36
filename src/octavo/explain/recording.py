"""Runs of an engine that records its events, and what recording them costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.llm import LLM
from octavo.observe.event_log import EventLog
from octavo.observe.events import StepFinished
from octavo.sampling_params import SamplingParams
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.bench.workload import Workload
    from octavo.config import EngineConfig
    from octavo.observe.event_log import RecordedEvent

_REPEATS = 5
_MOST_REPLAYED = 2_000
"""Events that are told again to time them."""


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """What it takes to record the events of a run."""

    num_events: int
    num_steps: int
    seconds_per_event: float
    """To make an event and to keep it."""
    step_seconds: float
    """Of all steps together, in the data plane."""

    @property
    def share(self) -> float:
        """Time spent on events over the time of the steps."""
        return self.num_events * self.seconds_per_event / self.step_seconds if self.step_seconds else 0.0

    def summary(self) -> str:
        """Return one line."""
        per_step = self.num_events / max(1, self.num_steps)
        return (
            f"{counted(self.num_events, 'event')} of {counted(self.num_steps, 'step')}; {per_step:.1f} a step"
            f" x {self.seconds_per_event * 1e9:,.0f} ns = {self.share:.2%} of the steps' time"
        )


def record_workload(config: EngineConfig, workload: Workload) -> list[RecordedEvent]:
    """Serve a workload that arrives at once; return what the engine decided.

    Raises: `ConfigError`, `ModelLoadError`, `RequestError`.
    """
    with LLM.from_engine_args(config) as llm:
        items = workload.items(llm.get_tokenizer(), llm.llm_engine.max_model_len)
        prompts = [item.prompt if isinstance(item.prompt, str) else {"prompt_token_ids": item.prompt} for item in items]
        params = [SamplingParams(temperature=0.0, max_tokens=item.output_len, ignore_eos=True) for item in items]
        llm.generate(prompts, params, use_tqdm=False)
        return llm.events()


def record_prompts(config: EngineConfig, prompts: Sequence[str], max_tokens: int) -> list[RecordedEvent]:
    """Answer prompts that arrive at once; return what the engine decided.

    Raises: `ConfigError`, `ModelLoadError`, `RequestError`.
    """
    with LLM.from_engine_args(config) as llm:
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=max_tokens), use_tqdm=False)
        return llm.events()


def recording_cost(recorded: Sequence[RecordedEvent]) -> RecordingCost:
    """Measure what recording such events takes on this machine, by making and keeping some of them again."""
    stride = max(1, len(recorded) // _MOST_REPLAYED)
    sample: list[tuple[type, list[Any]]] = []
    for entry in recorded[::stride]:
        parts = [list(part) if isinstance(part, tuple) else part for part in entry.event]
        sample.append((type(entry.event), parts))
    finished = [entry.event for entry in recorded if isinstance(entry.event, StepFinished)]
    best = min((_replay_seconds(sample) for _ in range(_REPEATS)), default=0.0)
    return RecordingCost(
        num_events=len(recorded),
        num_steps=len(finished),
        seconds_per_event=best / max(1, len(sample)),
        step_seconds=sum(event.step_seconds for event in finished),
    )


def _replay_seconds(sample: Sequence[tuple[type, list[Any]]]) -> float:
    """Make events of parts, lists becoming tuples as in the engine, and record them; return the time it took."""
    log = EventLog()
    started = time.perf_counter()
    for kind, parts in sample:
        log.emit(kind(*[tuple(part) if type(part) is list else part for part in parts]))
    return time.perf_counter() - started
