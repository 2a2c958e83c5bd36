"""Starts an engine: what it is made of is imported with the first model, not with the names that users import."""

from __future__ import annotations

import gc
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from octavo.config import EngineConfig
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.frontend.llm_engine import LLMEngine


def start_engine(config: EngineConfig, stat_loggers: None = None) -> LLMEngine:
    """Load a model and start an engine for it.

    Args:
        stat_loggers: what vLLM's engines would call with statistics; refused.

    Raises: `ConfigError`, `ModelLoadError`, `NativeError`; `TypeError` for what is no `EngineConfig`.
    """
    if not isinstance(config, EngineConfig):
        raise TypeError(f"engine_args must be EngineArgs(model=...), got {reprlib.repr(config)}")
    if stat_loggers is not None:
        raise ConfigError("stat_loggers is not supported: read get_metrics() instead.")
    with _no_collections():
        from octavo.frontend.build import build_engine

        return build_engine(config)


def checked_engine(engine: object) -> LLMEngine:
    """Return an engine that an `AsyncLLM` can be made of. Raises: `TypeError` for anything else."""
    from octavo.frontend.llm_engine import LLMEngine  # whoever has one has imported it

    if not isinstance(engine, LLMEngine):
        raise made_of_options("AsyncLLM", engine)
    return engine


def made_of_options(name: str, given: object) -> TypeError:
    """Return the error of a class whose constructor got something else than what `from_engine_args` gives it."""
    return TypeError(f"use {name}.from_engine_args(EngineArgs(model=...)) to make one, got {reprlib.repr(given)}")


@contextmanager
def _no_collections() -> Iterator[None]:
    """Spare Python's collector looking through what is just being made, all of which stays: a tenth of a start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
