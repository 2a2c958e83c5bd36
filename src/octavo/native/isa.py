"""Which native module is used: the best this CPU can run, or the one that OCTAVO_ISA names."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from octavo import envs
from octavo.errors import NativeError

ISA_LEVELS = ("generic", "avx2", "avx512")
"""From the one that runs anywhere to the most demanding."""


@lru_cache(maxsize=1)
def kernels() -> Any:
    """Return the native module of this process; chosen once.

    Raises: `NativeError` if it is missing, or OCTAVO_ISA asks for what this CPU cannot run.
    """
    return load_kernels(envs.forced_isa() or best_isa())


def best_isa() -> str:
    """Return the best ISA level that this CPU and system can run."""
    return str(_import("_detect").best())


def load_kernels(isa: str) -> Any:
    """Return the native module of one ISA level; several may be loaded at a time.

    Raises: `NativeError` if the level is unknown, not built, or more than this CPU can run.
    """
    if isa not in ISA_LEVELS:
        raise NativeError(f"ISA level {isa!r} is unknown; OCTAVO_ISA may be one of: {', '.join(ISA_LEVELS)}.")
    best = best_isa()
    if ISA_LEVELS.index(isa) > ISA_LEVELS.index(best):
        raise NativeError(f"OCTAVO_ISA is {isa}, but this CPU can run {best} at best; unset it or set it to {best}.")
    return _import(f"_k_{isa}")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(f"octavo.native.{name}")
    except ImportError as error:
        raise NativeError(
            f"The native module octavo.native.{name} cannot be loaded ({error}). Install a built wheel, or build this "
            "checkout with `pip install .`; that needs a C++17 compiler."
        ) from error
