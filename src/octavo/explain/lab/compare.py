"""One workload under several policies: each on an engine of its own, in turns, the fastest run of each kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.explain.lab.session import LabEngine, LabRequest, LabRun
from octavo.frontend.build import EnginePolicies


@dataclass(frozen=True, slots=True)
class LabSettings:
    """What every experiment takes. Raises: `ConfigError`."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the engine."""
    num_requests: int | None = None
    """None: as many as the experiment was made for."""
    rounds: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "rounds"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 100_000:
                raise ConfigError(f"{name} must be in [1, 100000], got {value}.")

    def max_model_len(self, default: int) -> int:
        """Return the longest request: what the options say, or what the experiment was made for."""
        length = EngineConfig(self.model, **self.options).max_model_len
        return length if isinstance(length, int) else default

    def max_num_seqs(self, default: int) -> int:
        """Return the number of seats: what the options say, or what the experiment was made for."""
        return EngineConfig(self.model, **self.options).max_num_seqs or default


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the workload."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the engine, over those of the experiment."""
    policies: EnginePolicies = field(default_factory=EnginePolicies)
    prepare: Callable[[Sequence[LabRequest]], Sequence[LabRequest]] = tuple
    """Changes how the same answers are asked for."""


def compare(
    settings: LabSettings,
    arms: Mapping[str, Arm],
    make_requests: Callable[[LabEngine], Sequence[LabRequest]],
    **options: Any,
) -> dict[str, LabRun]:
    """Run the workload once per arm and round, and return the fastest run of each arm.

    Args:
        options: of the experiment's engines; the user's go before them, an arm's own before both.

    Raises: `ConfigError`, `ModelLoadError`, `RequestError`.
    """
    best: dict[str, LabRun] = {}
    for _ in range(settings.rounds):
        for name, arm in arms.items():
            with LabEngine(settings.model, {**options, **settings.options, **arm.options}, arm.policies) as engine:
                requests = arm.prepare(make_requests(engine))
                engine.run([LabRequest(requests[0].prompt_token_ids, 2)])
                run = engine.run(requests)
            if name not in best or run.seconds < best[name].seconds:
                best[name] = run
    return best


def answers_are_equal(runs: Mapping[str, LabRun]) -> bool:
    """Whether every policy gave the same answers, token for token."""
    first, *others = runs.values()
    return all(run.token_ids == first.token_ids for run in others)


def on_answers(runs: Mapping[str, LabRun]) -> str:
    """Return a sentence about the answers."""
    if answers_are_equal(runs):
        return "All gave the same answers, token for token."
    return "The answers differ, which they never should: please report this."
