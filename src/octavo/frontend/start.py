"""Starts an engine: what it is made of is imported with the first model, not with the names that users import."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.frontend.llm_engine import LLMEngine


def start_engine(config: EngineConfig, stat_loggers: None = None) -> LLMEngine:
    """Load a model and start an engine for it.

    Args:
        stat_loggers: what vLLM's engines would call with statistics; refused.

    Raises: `ConfigError`, `ModelLoadError`, `NativeError`.
    """
    if stat_loggers is not None:
        raise ConfigError("stat_loggers is not supported: read get_metrics() instead.")
    with _no_collections():
        from octavo.frontend.build import build_engine

        return build_engine(config)


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
