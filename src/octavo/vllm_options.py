"""Engine options that vLLM has and Octavo does not: accepted where nothing is lost, else refused with the way out."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, TypeVar

from octavo.errors import ConfigError
from octavo.sampling_params import SamplingParams
from octavo.wording import nearest_hint

logger = logging.getLogger("octavo")

Options = TypeVar("Options")

HARMLESS: dict[str, str] = {
    "async_scheduling": "steps are scheduled one at a time, which costs little here",
    "compilation_config": "there is no compile step",
    "cuda_graph_sizes": "there is no compile step",
    "cudagraph_capture_sizes": "there is no compile step",
    "disable_custom_all_reduce": "there is one process",
    "disable_log_requests": "requests are not logged",
    "disable_log_stats": "statistics cost nothing and are always kept",
    "enable_log_requests": "requests are not logged",
    "enforce_eager": "there is no compile step",
    "expert_placement_strategy": "there is one process",
    "ignore_patterns": "only the files that a model needs are fetched",
    "max_context_len_to_capture": "there is no compile step",
    "max_cudagraph_capture_size": "there is no compile step",
    "max_parallel_loading_workers": "weights are mapped, not copied",
    "max_seq_len_to_capture": "there is no compile step",
    "mm_processor_cache_gb": "only text is supported, so there is nothing to cache",
    "mm_processor_cache_type": "only text is supported, so there is nothing to cache",
    "optimization_level": "there is no compile step",
    "performance_mode": "there is one mode",
    "prefix_caching_hash_algo": "cached prefixes are compared exactly, not by hash",
    "pt_load_map_location": "weights are mapped, not copied",
    "safetensors_load_strategy": "weights are mapped, not copied",
    "scheduler_reserve_full_isl": "a prompt is always admitted as a whole",
    "served_model_name": "only a server needs it",
    "swap_space": "a preempted request is recomputed, never swapped",
    "trust_remote_code": "no remote code is ever run",
}
"""Option: why leaving it out changes nothing."""

UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "additional_config": (({},), "leave it out"),
    "allowed_local_media_path": (("",), "only text is supported"),
    "allowed_media_domains": ((), "only text is supported"),
    "calculate_kv_scales": ((False,), "leave it out"),
    "code_revision": ((), "no remote code is ever run"),
    "collect_detailed_traces": ((), "use `octavo trace`"),
    "config_format": (("auto",), "leave it out"),
    "convert": (("auto", "none", "embed"), "every model generates and embeds, and does nothing else"),
    "cpu_offload_gb": ((0, 0.0), "weights already live in main memory; leave it out"),
    "data_parallel_size": ((1,), "start several processes"),
    "decode_context_parallel_size": ((1,), "one process uses all cores; set num_threads"),
    "device": (("auto", "cpu"), "only CPUs are supported"),
    "disable_cascade_attn": ((False, True), "leave it out"),
    "disable_chunked_mm_input": ((False, True), "only text is supported"),
    "disable_hybrid_kv_cache_manager": ((False,), "leave it out: layers with a window keep only their window"),
    "disable_mm_preprocessor_cache": ((False, True), "only text is supported"),
    "disable_sliding_window": ((False,), "set max_model_len to the window, within which it changes nothing"),
    "distributed_executor_backend": (("uni", "mp"), "there is one process; leave it out"),
    "enable_dbo": ((False,), "one process uses all cores; leave it out"),
    "enable_eplb": ((False,), "one process holds all experts; leave it out"),
    "enable_expert_parallel": ((False,), "one process holds all experts; leave it out"),
    "enable_lora": ((False,), "merge the adapter into the checkpoint"),
    "enable_mm_embeds": ((False,), "only text is supported"),
    "enable_prompt_embeds": ((False,), "pass token ids"),
    "enable_sleep_mode": ((False,), "close() the engine and start it again; that takes under a second"),
    "fully_sharded_loras": ((False,), "merge the adapter into the checkpoint"),
    "guided_decoding_backend": (
        ("auto", "guidance"),
        "there is one backend for structured outputs, llguidance; leave it out",
    ),
    "hf_config_path": ((), "put config.json beside the weights"),
    "hf_token": ((), "set the environment variable HF_TOKEN, or run `hf auth login`"),
    "io_processor_plugin": ((), "leave it out"),
    "kv_events_config": ((), "leave it out"),
    "kv_offloading_backend": (("native",), "set kv_cache_memory_bytes"),
    "kv_offloading_size": ((0,), "set kv_cache_memory_bytes"),
    "kv_sharing_fast_prefill": ((False,), "leave it out"),
    "kv_transfer_config": ((), "leave it out"),
    "limit_mm_per_prompt": (({},), "only text is supported"),
    "load_format": (("auto", "gguf", "safetensors"), "use a GGUF file or a directory of safetensors"),
    "logits_processors": (([],), "use logit_bias, allowed_token_ids or bad_words of SamplingParams"),
    "lora_dtype": (("auto",), "merge the adapter into the checkpoint"),
    "mamba_block_size": ((), "leave it out"),
    "mamba_cache_dtype": (("auto",), "leave it out"),
    "mamba_ssm_cache_dtype": (("auto",), "leave it out"),
    "max_cpu_loras": ((), "merge the adapter into the checkpoint"),
    "max_long_partial_prefills": ((1,), "set long_prefill_token_threshold"),
    "max_lora_rank": ((16,), "merge the adapter into the checkpoint"),
    "max_loras": ((1,), "merge the adapter into the checkpoint"),
    "max_num_active_seqs": ((), "set max_num_seqs"),
    "max_num_partial_prefills": ((1,), "set long_prefill_token_threshold"),
    "max_num_queued_reqs": ((), "leave it out"),
    "max_num_queued_tokens": ((), "leave it out"),
    "mm_encoder_tp_mode": (("weights",), "only text is supported"),
    "mm_processor_kwargs": (({},), "only text is supported"),
    "model_impl": (("auto", "vllm"), "leave it out"),
    "model_loader_extra_config": (({},), "leave it out"),
    "num_lookahead_slots": ((0,), "speculative decoding is not supported yet"),
    "num_scheduler_steps": ((1,), "leave it out"),
    "otlp_traces_endpoint": ((), "use `octavo trace`"),
    "override_pooler_config": ((), "set pooling_type to 'last' or 'mean'"),
    "pipeline_parallel_size": ((1,), "one machine holds the whole model; set num_threads to use its cores"),
    "pooler_config": ((), "set pooling_type to 'last' or 'mean'"),
    "preemption_mode": (("recompute",), "leave it out"),
    "reasoning_parser": (("",), "leave it out"),
    "rope_parameters": (({},), "use hf_overrides"),
    "rope_scaling": (({},), "use hf_overrides"),
    "rope_theta": ((), "use hf_overrides"),
    "runner": (("auto", "generate", "pooling"), "every model generates and embeds; leave it out"),
    "scheduler_cls": ((), "set scheduling_policy"),
    "skip_mm_profiling": ((False, True), "only text is supported"),
    "skip_tokenizer_init": ((False,), "pass prompt_token_ids and detokenize=False"),
    "spec_method": ((), "speculative decoding is not supported yet"),
    "spec_model": ((), "speculative decoding is not supported yet"),
    "spec_tokens": ((), "speculative decoding is not supported yet"),
    "speculative_config": ((), "speculative decoding is not supported yet"),
    "stream_interval": ((1,), "outputs are streamed token by token"),
    "structured_outputs_config": ((), "there is one backend for structured outputs, llguidance; leave it out"),
    "task": (("auto", "generate", "embed"), "every model generates and embeds, and does nothing else"),
    "tensor_parallel_size": ((1,), "one process uses all cores; set num_threads"),
    "tokenizer_mode": (("auto", "hf"), "leave it out"),
    "tokenizer_pool_size": ((0,), "leave it out: long texts are tokenised on threads of their own"),
    "tokenizer_revision": ((), "use revision, or give tokenizer a directory"),
    "use_v2_block_manager": ((True, False), "leave it out"),
    "watermark": ((0, 0.0), "leave it out"),
    "worker_cls": (("auto",), "leave it out"),
    "worker_extension_cls": (("",), "leave it out"),
}
"""Option: the values that, like None, ask for nothing, and what to do instead of any other."""

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


def takes_foreign_options(cls: type[Options]) -> type[Options]:
    """Have the constructor of a dataclass of options treat what it is given as `own_options` does."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    make, own = cls.__init__, [entry.name for entry in fields]
    required = [entry.name for entry in fields if entry.default is entry.default_factory is dataclasses.MISSING]

    @functools.wraps(make)
    def init(self: Options, *args: Any, **options: Any) -> None:
        placed = dict(zip(own, args, strict=False))
        if len(args) > len(own) or placed.keys() & options.keys():
            make(self, *args, **options)  # which says what is wrong
        given = {**placed, **options}
        for name in required:
            if name not in given:
                raise TypeError(f"the engine option {name!r} is missing, as in EngineArgs({name}=...)")
        make(self, **own_options(given, own))

    cls.__init__ = init  # type: ignore[assignment]
    return cls


def own_options(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the options that Octavo has, but those that are None, its defaults; give one notice about harmless ones.

    Raises: `ConfigError` for an option whose effect cannot be had, `TypeError` for a name nobody knows.
    """
    kept, dropped = {}, []
    for name, value in options.items():
        if name in known:
            if value is not None or name == "model":
                kept[name] = _own_quantization(value) if name == "quantization" else value
        elif name in HARMLESS:
            dropped.append(name)
        elif name in UNSUPPORTED:
            neutral, instead = UNSUPPORTED[name]
            if value is not None and not any(type(value) is type(entry) and value == entry for entry in neutral):
                only = f", only {' or '.join(map(repr, neutral))}" if neutral else ""
                raise ConfigError(f"{name}={value!r} is not supported{only}: {instead}.")
        else:
            raise _unknown_option(name, known)
    if dropped:
        reasons = "; ".join(f"{name} ({HARMLESS[name]})" for name in sorted(dropped))
        logger.warning("options without effect: %s", reasons)
    return kept


def refuse_sleep() -> NoReturn:
    """Raise the `ConfigError` of vLLM's sleep mode, wherever it is asked for."""
    raise ConfigError(f"sleeping is not supported: {UNSUPPORTED['enable_sleep_mode'][1]}.")


def _unknown_option(name: str, known: Collection[str]) -> TypeError:
    if name in _SAMPLING_PARAMETERS:
        return TypeError(f"{name!r} is no engine option: it belongs to each request, in SamplingParams({name}=...)")
    return TypeError(f"unknown engine option {name!r}{nearest_hint(name, [*known, *HARMLESS, *UNSUPPORTED])}")


def _own_quantization(value: object) -> object:
    """Return the value without vLLM's name for GGUF files, which asks for nothing.

    Raises: `ConfigError` for another method of vLLM's.
    """
    if isinstance(value, str) and value in FOREIGN_QUANTIZATIONS:
        raise ConfigError(f"quantization={value!r} is not supported: {FOREIGN_QUANTIZATIONS[value]}.")
    return None if value == "gguf" else value
