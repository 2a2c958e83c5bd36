"""Engine options that vLLM has and Octavo does not: accepted where nothing is lost, else refused with the way out."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Collection, Mapping
from typing import Any

from octavo.errors import ConfigError
from octavo.sampling_params import SamplingParams

logger = logging.getLogger("octavo")

HARMLESS: dict[str, str] = {
    "async_scheduling": "steps are scheduled one at a time, which costs little here",
    "compilation_config": "there is no compile step",
    "cudagraph_capture_sizes": "there is no compile step",
    "disable_custom_all_reduce": "there is one process",
    "disable_log_requests": "requests are not logged",
    "disable_log_stats": "statistics cost nothing and are always kept",
    "enable_log_requests": "requests are not logged",
    "enforce_eager": "there is no compile step",
    "max_context_len_to_capture": "there is no compile step",
    "max_parallel_loading_workers": "weights are mapped, not copied",
    "max_seq_len_to_capture": "there is no compile step",
    "optimization_level": "there is no compile step",
    "performance_mode": "there is one mode",
    "prefix_caching_hash_algo": "cached prefixes are compared exactly, not by hash",
    "scheduler_reserve_full_isl": "a prompt is always admitted as a whole",
    "served_model_name": "only a server needs it",
    "swap_space": "a preempted request is recomputed, never swapped",
    "trust_remote_code": "no remote code is ever run",
}
"""Option: why leaving it out changes nothing."""

UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "code_revision": ((None,), "no remote code is ever run"),
    "config_format": (("auto",), "leave it out"),
    "convert": (("auto", "none", "embed"), "every model generates and embeds, and does nothing else"),
    "cpu_offload_gb": ((0, 0.0), "weights already live in main memory; leave it out"),
    "data_parallel_size": ((1,), "start several processes"),
    "distributed_executor_backend": ((None, "uni", "mp"), "there is one process; leave it out"),
    "enable_lora": ((False, None), "merge the adapter into the checkpoint"),
    "enable_prompt_embeds": ((False,), "pass token ids"),
    "enable_sleep_mode": ((False,), "close() the engine and start it again; that takes under a second"),
    "hf_config_path": ((None,), "put config.json beside the weights"),
    "hf_token": ((None,), "set the environment variable HF_TOKEN, or run `hf auth login`"),
    "kv_events_config": ((None,), "leave it out"),
    "kv_offloading_size": ((None, 0), "set kv_cache_memory_bytes"),
    "kv_transfer_config": ((None,), "leave it out"),
    "limit_mm_per_prompt": ((None, {}), "only text is supported"),
    "load_format": (("auto", "gguf", "safetensors"), "use a GGUF file or a directory of safetensors"),
    "logits_processors": ((None, []), "use logit_bias, allowed_token_ids or bad_words of SamplingParams"),
    "max_lora_rank": ((None, 16), "merge the adapter into the checkpoint"),
    "max_loras": ((None, 1), "merge the adapter into the checkpoint"),
    "max_num_queued_reqs": ((None,), "leave it out"),
    "mm_processor_kwargs": ((None, {}), "only text is supported"),
    "model_impl": (("auto", "vllm"), "leave it out"),
    "pipeline_parallel_size": ((1,), "one machine holds the whole model; set num_threads to use its cores"),
    "pooler_config": ((None,), "set pooling_type to 'last' or 'mean'"),
    "reasoning_parser": (("", None), "leave it out"),
    "rope_parameters": ((None, {}), "use hf_overrides"),
    "rope_scaling": ((None, {}), "use hf_overrides"),
    "rope_theta": ((None,), "use hf_overrides"),
    "runner": (("auto", "generate", "pooling"), "every model generates and embeds; leave it out"),
    "skip_tokenizer_init": (
        (False,),
        "pass prompt_token_ids and detokenize=False",
    ),
    "speculative_config": ((None,), "speculative decoding is not supported yet"),
    "structured_outputs_config": ((None,), "there is one backend for structured outputs, llguidance; leave it out"),
    "task": (("auto", "generate", "embed"), "every model generates and embeds, and does nothing else"),
    "tensor_parallel_size": ((1,), "one process uses all cores; set num_threads"),
    "tokenizer_mode": (("auto", "hf"), "leave it out"),
    "tokenizer_revision": ((None,), "use revision, or give tokenizer a directory"),
    "watermark": ((0, 0.0), "leave it out"),
    "worker_cls": (("auto",), "leave it out"),
}
"""Option: the values that ask for nothing, and what to do instead of any other."""

_STORED = "such checkpoints cannot be read: use the original one with quantization='q4' or 'q8', or a GGUF file"
_BY_CONFIG = "leave it out: a checkpoint's config.json says how it is quantised, and docs/formats.md what can be read"
_ON_LOAD = "use 'q8', which rounds weights to 8 bits while loading, or 'q4'"

FOREIGN_QUANTIZATIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "aqlm", "auto-round", "bitblas", "gptq_marlin_24", "inc", "marlin", "modelopt", "modelopt_fp4", "mxfp4",
            "petit_nvfp4", "qqq", "quark",
        ),
        _STORED,
    ),
    **dict.fromkeys(
        (
            "awq", "awq_marlin", "compressed-tensors", "cpu_awq", "gptq", "gptq_bitblas", "gptq_marlin", "moe_wna16",
        ),
        _BY_CONFIG,
    ),
    **dict.fromkeys(
        (
            "bitsandbytes", "deepspeedfp", "experts_int8", "fbgemm_fp8", "fp8", "fp_quant", "hqq", "int8", "ipex",
            "mxfp8", "neuron_quant", "ptpc_fp8", "rtn", "torchao", "tpu_int8",
        ),
        _ON_LOAD,
    ),
}  # fmt: skip
"""Value of `quantization`: what to do instead."""


_SAMPLING_PARAMETERS = frozenset(entry.name for entry in dataclasses.fields(SamplingParams))


def drop_foreign_options(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the options that Octavo has; give one notice about the harmless ones.

    Raises: `ConfigError` for an option whose effect cannot be had, `TypeError` for a name nobody knows.
    """
    kept, dropped = {}, []
    for name, value in options.items():
        if name in known:
            kept[name] = _own_quantization(value) if name == "quantization" else value
        elif name in HARMLESS:
            dropped.append(name)
        elif name in UNSUPPORTED:
            neutral, instead = UNSUPPORTED[name]
            if not any(type(value) is type(entry) and value == entry for entry in neutral):
                raise ConfigError(f"{name}={value!r} is not supported: {instead}.")
        else:
            if name in _SAMPLING_PARAMETERS:
                raise TypeError(
                    f"{name!r} is no engine option: it belongs to each request, in SamplingParams({name}=...)"
                )
            nearest = difflib.get_close_matches(name, [*known, *HARMLESS, *UNSUPPORTED], n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise TypeError(f"unknown engine option {name!r}{hint}")
    if dropped:
        reasons = "; ".join(f"{name} ({HARMLESS[name]})" for name in sorted(dropped))
        logger.warning("options without effect: %s", reasons)
    return kept


def _own_quantization(value: object) -> object:
    """Return the value without vLLM's name for GGUF files, which asks for nothing.

    Raises: `ConfigError` for another method of vLLM's.
    """
    if isinstance(value, str) and value in FOREIGN_QUANTIZATIONS:
        raise ConfigError(f"quantization={value!r} is not supported: {FOREIGN_QUANTIZATIONS[value]}.")
    return None if value == "gguf" else value
