"""Octavo: LLM inference on CPUs, with vLLM's API.

Names are loaded when they are first used, so that importing the package is fast and loads no native code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import AsyncEngineArgs, EngineArgs, EngineConfig
    from octavo.errors import (
        ConfigError,
        EngineDeadError,
        ModelLoadError,
        NativeError,
        OctavoError,
        QueueFullError,
        RequestError,
        RequestTimeoutError,
    )
    from octavo.frontend.async_engine import AsyncLLM, AsyncLLMEngine
    from octavo.frontend.input_processor import PromptType, TextPrompt, TokensPrompt
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.llm import LLM
    from octavo.outputs import (
        BeamSearchOutput,
        BeamSearchSequence,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        OutputError,
        PoolingRequestOutput,
        RequestOutput,
        RequestStateStats,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from octavo.pooling_params import PoolingParams
    from octavo.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
    from octavo.structured_outputs import StructuredOutputsParams
    from octavo.version import __version__

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineConfig",
    "EngineDeadError",
    "LLMEngine",
    "Logprob",
    "ModelLoadError",
    "NativeError",
    "OctavoError",
    "OutputError",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "QueueFullError",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStateStats",
    "RequestTimeoutError",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

_HOMES = {
    "LLM": "octavo.llm",
    "AsyncEngineArgs": "octavo.config",
    "AsyncLLM": "octavo.frontend.async_engine",
    "AsyncLLMEngine": "octavo.frontend.async_engine",
    "BeamSearchOutput": "octavo.outputs",
    "BeamSearchParams": "octavo.sampling_params",
    "BeamSearchSequence": "octavo.outputs",
    "CompletionOutput": "octavo.outputs",
    "ConfigError": "octavo.errors",
    "EmbeddingOutput": "octavo.outputs",
    "EmbeddingRequestOutput": "octavo.outputs",
    "EngineArgs": "octavo.config",
    "EngineConfig": "octavo.config",
    "EngineDeadError": "octavo.errors",
    "LLMEngine": "octavo.frontend.llm_engine",
    "Logprob": "octavo.outputs",
    "ModelLoadError": "octavo.errors",
    "NativeError": "octavo.errors",
    "OctavoError": "octavo.errors",
    "OutputError": "octavo.outputs",
    "PoolingParams": "octavo.pooling_params",
    "PoolingRequestOutput": "octavo.outputs",
    "PromptType": "octavo.frontend.input_processor",
    "QueueFullError": "octavo.errors",
    "RequestError": "octavo.errors",
    "RequestOutput": "octavo.outputs",
    "RequestOutputKind": "octavo.sampling_params",
    "RequestStateStats": "octavo.outputs",
    "RequestTimeoutError": "octavo.errors",
    "SamplingParams": "octavo.sampling_params",
    "ScoringOutput": "octavo.outputs",
    "ScoringRequestOutput": "octavo.outputs",
    "StructuredOutputsParams": "octavo.structured_outputs",
    "TextPrompt": "octavo.frontend.input_processor",
    "TokensPrompt": "octavo.frontend.input_processor",
    "__version__": "octavo.version",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
