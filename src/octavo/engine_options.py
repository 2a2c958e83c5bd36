"""The options of an engine as keyword arguments: what editors and type checkers offer for `LLM(model, ...)`.

Names and types are those of `EngineConfig`, which documents them and has the defaults; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from octavo.config import Dtype, KvCacheDtype, LogprobsMode, Quantization, SchedulingPolicy
from octavo.pooling_params import PoolingType


class EngineOptions(TypedDict, total=False):
    """Every field of `EngineConfig` but the model."""

    tokenizer: str | None
    revision: str | None
    download_dir: str | None
    hf_overrides: Mapping[str, Any] | None
    dtype: Dtype
    quantization: Quantization | None
    cache_quantized_weights: bool
    use_tqdm_on_load: bool
    max_model_len: int | str | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    long_prefill_token_threshold: int | None
    target_itl_ms: float | None
    enable_chunked_prefill: bool
    scheduling_policy: SchedulingPolicy
    block_size: int
    enable_prefix_caching: bool
    kv_cache_dtype: KvCacheDtype
    kv_cache_memory_bytes: int | str | None
    gpu_memory_utilization: float | None
    num_gpu_blocks_override: int | None
    seed: int
    max_logprobs: int
    logprobs_mode: LogprobsMode
    generation_config: str
    override_generation_config: Mapping[str, Any] | None
    pooling_type: PoolingType | None
    num_threads: int | None
    activation_quantization: bool
    record_events: bool
