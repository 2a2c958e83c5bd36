"""Octavo: LLM inference on CPUs, with vLLM's API.

Names are loaded when they are first used, so that importing the package is fast and loads no native code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineArgs, EngineConfig
    from octavo.errors import (
        ConfigError,
        EngineDeadError,
        ModelLoadError,
        NativeError,
        OctavoError,
        RequestError,
    )
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.llm import LLM
    from octavo.outputs import CompletionOutput, Logprob, OutputError, RequestOutput, RequestStateStats
    from octavo.sampling_params import RequestOutputKind, SamplingParams
    from octavo.version import __version__

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "EngineArgs",
    "EngineConfig",
    "EngineDeadError",
    "LLMEngine",
    "Logprob",
    "ModelLoadError",
    "NativeError",
    "OctavoError",
    "OutputError",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStateStats",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "LLM": "octavo.llm",
    "CompletionOutput": "octavo.outputs",
    "ConfigError": "octavo.errors",
    "EngineArgs": "octavo.config",
    "EngineConfig": "octavo.config",
    "EngineDeadError": "octavo.errors",
    "LLMEngine": "octavo.frontend.llm_engine",
    "Logprob": "octavo.outputs",
    "ModelLoadError": "octavo.errors",
    "NativeError": "octavo.errors",
    "OctavoError": "octavo.errors",
    "OutputError": "octavo.outputs",
    "RequestError": "octavo.errors",
    "RequestOutput": "octavo.outputs",
    "RequestOutputKind": "octavo.sampling_params",
    "RequestStateStats": "octavo.outputs",
    "SamplingParams": "octavo.sampling_params",
    "__version__": "octavo.version",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
