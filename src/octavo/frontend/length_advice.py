"""What can be done about a request that is longer than may be: one answer, for all who refuse or cut one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.config import EngineConfig, SchedulerConfig
    from octavo.frontend.resolve import ResolvedModel


def way_to_more_length(config: EngineConfig, model: ResolvedModel, scheduling: SchedulerConfig) -> str:
    """Return what lets prompt and output be longer than `max_model_len`, as in "..., or raise it"."""
    if scheduling.max_model_len < model.spec.max_positions:
        if config.max_model_len != "auto":
            return "raise max_model_len"
        if not config.enable_chunked_prefill and scheduling.max_model_len == config.max_num_batched_tokens:
            return "raise max_num_batched_tokens"
        return (
            "raise kv_cache_memory_bytes" if config.num_gpu_blocks_override is None else "raise num_gpu_blocks_override"
        )
    elsewhere = "use a model that was made for longer texts"
    has_config = isinstance(model.beside_weights, Path)
    return f"{elsewhere}, or extend this one's rope scaling with hf_overrides" if has_config else elsewhere
