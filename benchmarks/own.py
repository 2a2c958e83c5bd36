"""Measured on octavo alone: how the cost of a step grows, what long prompts and busy neighbours do to others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from engines import run_process
from work import Scale

from octavo.bench.steps import LoadedProgram, StepFigures, decode_step, load_program, measure_steps
from octavo.config import EngineConfig
from octavo.program.cost import StepShape

_FIXED_CONTEXT = 256
_NUM_BUSY = 2


class OwnMeasures:
    """Times whole steps of one model by themselves, and runs `stall.py`."""

    def __init__(self, config: EngineConfig, options: Mapping[str, Any], scale: Scale, max_model_len: int) -> None:
        """`options`: those that `config` was made from."""
        self._config = config
        self._options = options
        self._scale = scale
        self._max_model_len = max_model_len

    def linearity(self) -> list[dict[str, float]]:
        """Return the time of a decode step by batch size, at one context."""
        context = min(_FIXED_CONTEXT, self._max_model_len)
        return self._steps([decode_step(size, context) for size in self._scale.linearity_batches])

    def context(self) -> list[dict[str, float]]:
        """Return the time of a decode step by context, at several batch sizes."""
        lengths = [length for length in self._scale.context_lens if length <= self._max_model_len]
        return [
            entry
            for size in self._scale.batch_sizes
            for entry in self._steps([decode_step(size, length) for length in lengths])
        ]

    def stall(self) -> dict[str, Any]:
        """Return the p99 time between tokens of eight requests: alone, beside a long prompt, and then with a target."""
        length = min(self._scale.long_prompt_len, self._max_model_len - 1)
        arguments = [self._config.model, json.dumps(self._options), str(length), str(self._scale.stall_output_len)]
        script = Path(__file__).resolve().parent / "stall.py"
        return dict(json.loads(run_process([sys.executable, str(script), *arguments]).splitlines()[-1]))

    def busy(self) -> dict[str, float]:
        """Return the mean time of a decode step of eight requests, alone and beside busy processes."""
        shape = decode_step(8, min(_FIXED_CONTEXT, self._max_model_len))
        alone = self._measure([shape])[0].mean_seconds
        with busy_processes(_NUM_BUSY):
            beside = self._measure([shape])[0].mean_seconds
        return {"alone_ms": alone * 1e3, "beside_two_busy_ms": beside * 1e3, "slowdown": beside / alone}

    def _steps(self, shapes: Sequence[StepShape]) -> list[dict[str, float]]:
        return [
            {"batch_size": entry.num_requests, "context_len": entry.context_len, "step_ms": entry.seconds * 1e3}
            for entry in self._measure(shapes)
        ]

    def _measure(self, shapes: Sequence[StepShape]) -> list[StepFigures]:
        return measure_steps(self._loaded, shapes, min_seconds=self._scale.step_seconds)

    @cached_property
    def _loaded(self) -> LoadedProgram:
        return load_program(self._config, longest=1)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` processes computing."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
