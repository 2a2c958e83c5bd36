"""Whole steps of a model without an engine around it: their native time, by batch size and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.bench.step_work import WorkModel
from octavo.errors import ConfigError
from octavo.frontend.machine import available_memory_bytes
from octavo.frontend.model_weights import load_model_weights
from octavo.frontend.resolve import make_program, resolve
from octavo.program.cost import StepShape
from octavo.runner.step_timer import StepTimer, cache_pools, pool_sizes
from octavo.wording import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from octavo.config import EngineConfig
    from octavo.program.ops import Program
    from octavo.weights.store import WeightStore


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A program with its weights, and how it is run."""

    program: Program
    weights: WeightStore
    num_threads: int
    activation_quantization: bool

    @property
    def work_model(self) -> WorkModel:
        """What its steps have to do at least."""
        int8 = self.weights.quantized_matrices() if self.activation_quantization else frozenset()
        return WorkModel(self.program, self.weights.bytes_by_name(), int8)

    def cache_pools(self, shapes: Sequence[StepShape]) -> list[NDArray[np.uint8]]:
        """Return memory for the caches of these steps.

        Raises: `ConfigError` if there is not as much.
        """
        groups = self.program.cache_groups
        needed, available = sum(pool_sizes(groups, shapes)), available_memory_bytes()
        if needed > available:
            raise ConfigError(
                f"The KV cache of the largest step takes {needed} bytes, {available} are available: make batch sizes or"
                " contexts smaller."
            )
        return cache_pools(groups, shapes)

    def timer(self, program: Program, weights: WeightStore, **options: Any) -> StepTimer:
        """Return a timer of this program, or of one that was made from it."""
        return StepTimer(
            program,
            weights,
            num_threads=self.num_threads,
            activation_quantization=self.activation_quantization,
            **options,
        )


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One shape of step: body, head and greedy choice."""

    num_requests: int
    num_rows: int
    context_len: int
    seconds: float
    """The least of several runs."""
    mean_seconds: float
    tokens_per_s: float
    """Rows over the least time."""


def load_program(config: EngineConfig, *, longest: int) -> LoadedProgram:
    """Load a model, for requests of up to `longest` tokens.

    Raises: `ConfigError` if the model was not made for that many; `ModelLoadError`.
    """
    resolved = resolve(config)
    if longest > resolved.longest:
        limit = counted(resolved.longest, "token")
        raise ConfigError(f"The model was made for {limit}; a request of {longest} is too long.")
    program = make_program(config, resolved.model.spec, resolved.longest)
    weights, packing = load_model_weights(config, resolved, program)
    packing.wait()
    return LoadedProgram(program, weights, resolved.num_threads, config.activation_quantization)


def decode_step(num_requests: int, context_len: int) -> StepShape:
    """Return the step that makes one token for each of so many requests."""
    return StepShape([1] * num_requests, [context_len] * num_requests, num_requests)


def measure_steps(loaded: LoadedProgram, shapes: Sequence[StepShape], *, min_seconds: float = 0.1) -> list[StepFigures]:
    """Measure whole steps, each for at least `min_seconds`."""
    pools = loaded.cache_pools(shapes)
    with loaded.timer(loaded.program, loaded.weights, shapes=shapes, pools=pools) as timer:
        return [_figures(shape, timer.seconds(shape, at_least=min_seconds)) for shape in shapes]


def _figures(shape: StepShape, runs: Sequence[float]) -> StepFigures:
    num_rows = sum(shape.query_lens)
    return StepFigures(
        num_requests=len(shape.query_lens),
        num_rows=num_rows,
        context_len=max(shape.seq_lens),
        seconds=min(runs),
        mean_seconds=sum(runs) / len(runs),
        tokens_per_s=num_rows / min(runs),
    )
