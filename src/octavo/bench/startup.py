"""`octavo bench startup`: fresh processes, from nothing to the first token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

from octavo.bench.report import Report, format_columns, make_recipe
from octavo.config import EngineConfig
from octavo.errors import ConfigError, OctavoError
from octavo.native import default_num_threads, kernels

_PHASES = ("python_s", "import_s", "load_s", "first_token_s", "total_s")
"""Until Python runs the first line; imports; the model loaded; the first token made; all of it."""


def run_startup(model: str, options: dict[str, Any], *, num_iters: int = 5, show_progress: bool = False) -> Report:
    """Start the engine in fresh processes, one after the other, and report medians.

    One more start comes first and is not counted: it brings the files into memory.

    Raises: `ConfigError`; `OctavoError` with what a process said that failed.
    """
    if num_iters < 1:
        raise ConfigError(f"num_iters must be at least 1, got {num_iters}.")
    from tqdm import tqdm

    config = EngineConfig(model, **options)
    _start_once(model, options)
    counted = tqdm(range(num_iters), desc="Starts", disable=not show_progress, dynamic_ncols=True)
    runs = [_start_once(model, options) for _ in counted]
    figures = {name: median(run[name] for run in runs) for name in (*_PHASES, "peak_rss_bytes")}
    recipe = make_recipe(
        config,
        num_threads=config.num_threads or default_num_threads(),
        isa=str(kernels().isa),
        workload={"num_iters": num_iters, "files_in_memory": True},
    )
    rows = [
        [name.removesuffix("_s").replace("_", " "), figures[name], min(run[name] for run in runs)] for name in _PHASES
    ]
    table = format_columns(["seconds", "median", "least"], rows)
    return Report("startup", recipe, {**figures, "runs": runs}, table)


def with_bytecode() -> dict[str, str]:
    """Return the environment for a process that starts like an installed package: without compiling its modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _start_once(model: str, options: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, "-m", "octavo.bench.startup_probe", repr(time.monotonic()), model, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=with_bytecode())
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OctavoError(f"The engine did not start: {reason}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured
