"""A model's name and the user's options to what the parts are built from: nothing is "auto" afterwards.

The only place that looks at the model's files, the machine and the options together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config import DEFAULT_KV_MEMORY_SHARE, SchedulerConfig
from octavo.errors import ConfigError
from octavo.formats.gguf import GgufFile, open_gguf
from octavo.formats.gguf_types import GgufType
from octavo.formats.json_file import read_json_object
from octavo.formats.safetensors import open_safetensors_dir
from octavo.frontend.embedding import EmbeddingConfig, embedding_config
from octavo.frontend.generation_defaults import default_sampling_params
from octavo.frontend.machine import available_memory_bytes
from octavo.models.decoder import build_program
from octavo.models.registry import gguf_architecture, hf_architecture, spec_from_gguf, spec_from_hf
from octavo.native import default_num_threads
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.weights.checkpoint import Checkpoint, checkpoint_from_gguf, checkpoint_from_safetensors
from octavo.weights.hub import ModelFiles, resolve_description_files, resolve_model_files, resolve_tokenizer_path
from octavo.weights.quantization import quantized_checkpoint

if TYPE_CHECKING:
    from octavo.cache_spec import CacheDtype
    from octavo.config import EngineConfig
    from octavo.models.base import DecoderSpec
    from octavo.program.ops import Program
    from octavo.sampling_params import SamplingParams

logger = logging.getLogger("octavo")

_DEFAULT_MAX_NUM_SEQS = 256
_DEFAULT_TOKEN_BUDGET = 512
"""Twice the rows make a step of prefill hardly faster per token, but every step twice as long."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a model is, as far as its config, and its weights where they are there, say."""

    architecture: str
    spec: DecoderSpec
    checkpoint: Checkpoint | None
    """None if there is a config alone."""
    float_type: GgufType
    """Of weights that are not there: what the config says they are stored in."""
    default_sampling_params: SamplingParams


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What the model's files say."""

    spec: DecoderSpec
    checkpoint: Checkpoint
    beside_weights: GgufFile | Path
    """Where a tokenizer is: in the GGUF file, or in the directory."""
    default_sampling_params: SamplingParams
    embedding: EmbeddingConfig


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The user's options with every default filled in."""

    model: ResolvedModel
    max_model_len: int | None
    """None: as much as the KV cache can hold, up to `longest`. Known once the cache is."""
    longest: int
    """The length to build the program for, as far as it is known."""
    num_threads: int
    cache_dtype: CacheDtype


def resolve(config: EngineConfig) -> ResolvedConfig:
    """Find the model, read all but its weights and its tokenizer, and decide what is left open by the options.

    Raises: `ConfigError`, `ModelLoadError`.
    """
    files = resolve_model_files(config.model, config.revision, config.download_dir)
    model = _resolve_model(config, files)
    if config.quantization is not None:
        model = replace(model, checkpoint=quantized_checkpoint(model.checkpoint, config.quantization))
    _warn_of_memory(model.checkpoint, config.quantization)
    resolved = ResolvedConfig(
        model=model,
        max_model_len=max_model_len(config, model.spec),
        longest=longest_model_len(config, model.spec),
        num_threads=config.num_threads or default_num_threads(),
        cache_dtype=cache_dtype(config),
    )
    _check_rope_tables(model.spec, resolved.longest, available_memory_bytes())
    return resolved


def load_tokenizer(config: EngineConfig, model: ResolvedModel) -> Tokenizer:
    """Load the tokenizer of a model.

    Raises: `ModelLoadError`.
    """
    beside_weights = model.beside_weights
    if config.tokenizer is not None:
        return Tokenizer.from_path(resolve_tokenizer_path(config.tokenizer, config.revision, config.download_dir))
    if isinstance(beside_weights, GgufFile):
        return Tokenizer.from_gguf(beside_weights)
    return Tokenizer.from_directory(beside_weights)


def scheduler_config(config: EngineConfig, max_model_len: int) -> SchedulerConfig:
    """Return the scheduler's options.

    Raises: `ConfigError` if a prompt must run in one step that is too small for it.
    """
    budget = config.max_num_batched_tokens
    if budget is None:
        whole_prompt = 0 if config.enable_chunked_prefill else max_model_len
        budget = max(_DEFAULT_TOKEN_BUDGET, config.max_num_seqs or 0, whole_prompt)
    elif not config.enable_chunked_prefill and budget < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens ({budget}) must be at least max_model_len ({max_model_len}) with "
            "enable_chunked_prefill=False: raise it, lower max_model_len, or let prompts be chunked."
        )
    threshold = config.long_prefill_token_threshold
    return SchedulerConfig(
        max_num_seqs=config.max_num_seqs or min(_DEFAULT_MAX_NUM_SEQS, budget),
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        long_prefill_token_threshold=max(1, budget // 2) if threshold is None else threshold,
        target_itl_ms=config.target_itl_ms,
        enable_chunked_prefill=config.enable_chunked_prefill,
        policy=config.scheduling_policy,
        enable_prefix_caching=config.enable_prefix_caching,
    )


def cache_dtype(config: EngineConfig) -> CacheDtype:
    """Return how keys and values are stored."""
    return "float16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def make_program(config: EngineConfig, spec: DecoderSpec, max_model_len: int) -> Program:
    """Write the program of a model as the options want it: every reader of these options gets the same one."""
    return build_program(
        spec,
        max_model_len=max_model_len,
        block_size=config.block_size,
        cache_dtype=cache_dtype(config),
        keeps_border=config.enable_prefix_caching,
    )


def cache_bytes(config: EngineConfig, available: int) -> int:
    """Return what the KV cache may grow to.

    Args:
        available: bytes of memory that are left when the weights are loaded and a step has what it needs.
    """
    if config.kv_cache_memory_bytes is not None:
        return int(config.kv_cache_memory_bytes)
    share = DEFAULT_KV_MEMORY_SHARE if config.gpu_memory_utilization is None else config.gpu_memory_utilization
    return int(max(0, available) * share)


def max_model_len(config: EngineConfig, spec: DecoderSpec) -> int | None:
    """Return the length that the options want; None: as much as the KV cache can hold.

    Raises: `ConfigError` if it is more than the model was made for.
    """
    wanted, model_length = config.max_model_len, spec.max_positions
    if wanted == "auto":
        return None
    if wanted is None:
        return model_length
    if int(wanted) > model_length:
        raise ConfigError(
            f"max_model_len ({wanted}) is more than the {model_length} tokens that the model was made for: lower it, "
            "or, of a model with a config.json, extend the rope scaling with hf_overrides."
        )
    return int(wanted)


def longest_model_len(config: EngineConfig, spec: DecoderSpec) -> int:
    """Return the length that the options want, or the most that an automatic one may come to.

    Raises: `ConfigError` if it is more than the model was made for.
    """
    length = max_model_len(config, spec)
    if length is not None:
        return length
    runs_in_one_step = not config.enable_chunked_prefill and config.max_num_batched_tokens is not None
    return min(spec.max_positions, config.max_num_batched_tokens or 0) if runs_in_one_step else spec.max_positions


def _check_rope_tables(spec: DecoderSpec, positions: int, available: int) -> None:
    """Raise `ConfigError` if the rotations of all positions, which are computed at load, do not fit in memory."""
    per_position = 4 * sum(rope.rotary_dim for rope in {layer.rope for layer in spec.layers} if rope is not None)
    if positions * per_position > available:
        raise ConfigError(
            f"A context of {positions} tokens takes {positions * per_position} bytes for its rotation tables alone; "
            f"{available} bytes of memory are available: set max_model_len, below {available // per_position}."
        )


def describe(config: EngineConfig) -> ModelDescription:
    """Read what a model is; of a Hugging Face model the config alone will do, and no weights are downloaded.

    Raises: `ConfigError`, `ModelLoadError`.
    """
    files = resolve_description_files(config.model, config.revision, config.download_dir)
    if files.kind == "gguf":
        return _describe_gguf(config, open_gguf(files.path))
    return _describe_directory(config, files)


def _describe_gguf(config: EngineConfig, file: GgufFile) -> ModelDescription:
    if config.hf_overrides:
        raise ConfigError("hf_overrides change a config.json, which a GGUF file does not have: leave them out.")
    spec = spec_from_gguf(file)
    architecture = gguf_architecture(file)
    permuted = (spec.num_heads, spec.num_kv_heads) if architecture.permuted_qk else None
    checkpoint = checkpoint_from_gguf(file, sandwich=spec.block == "sandwich", permuted_heads=permuted)
    name = file.require("general.architecture", str)
    checkpoint = architecture.adapt(checkpoint, spec)
    return ModelDescription(name, spec, checkpoint, GgufType.F32, default_sampling_params(config, None))


def _describe_directory(config: EngineConfig, files: ModelFiles) -> ModelDescription:
    source = str(files.path / "config.json")
    values = _merged(read_json_object(source), config.hf_overrides or {})
    architecture = hf_architecture(values, source)
    spec = spec_from_hf(values, source)
    checkpoint = None
    if files.kind == "safetensors":
        from octavo.weights.prequantized import read_scheme  # not for GGUF files

        tensors = open_safetensors_dir(files.path)
        checkpoint = checkpoint_from_safetensors(
            tensors, str(files.path), norm_offset=architecture.norm_offset, scheme=read_scheme(values, source)
        )
        checkpoint = architecture.adapt(checkpoint, spec)
    sampling = default_sampling_params(config, files.path)
    return ModelDescription(_architecture_name(values), spec, checkpoint, _float_type(values), sampling)


def _architecture_name(values: Mapping[str, Any]) -> str:
    return ", ".join(values["architectures"])


def _float_type(values: Mapping[str, Any]) -> GgufType:
    """Return what a config.json says of its weights; the key has had two names, and may be in the text part."""
    configs = (values, values.get("text_config") or {})
    names = (config.get(key) for config in configs for key in ("dtype", "torch_dtype"))
    types = {"float32": GgufType.F32, "float16": GgufType.F16}
    return next((types.get(name, GgufType.BF16) for name in names if isinstance(name, str)), GgufType.BF16)


def _resolve_model(config: EngineConfig, files: ModelFiles) -> ResolvedModel:
    beside_weights: GgufFile | Path
    if files.kind == "gguf":
        beside_weights = file = open_gguf(files.path)
        description = _describe_gguf(config, file)
    else:
        beside_weights = files.path
        description = _describe_directory(config, files)
    assert description.checkpoint is not None, "files with weights were asked for"
    return ResolvedModel(
        spec=description.spec,
        checkpoint=description.checkpoint,
        beside_weights=beside_weights,
        default_sampling_params=description.default_sampling_params,
        embedding=embedding_config(config.pooling_type, beside_weights),
    )


def _warn_of_memory(checkpoint: Checkpoint, quantization: str | None) -> None:
    """Say so if the weights need more memory than there is: the system may swap, or kill the process."""
    needed, available = checkpoint.packed_bytes, available_memory_bytes()
    if needed <= available:
        return
    way_out = "" if quantization == "q4" else "; quantization='q4' or a smaller GGUF file takes less"
    logger.warning(
        "the weights need %.1f GB of memory, but %.1f GB are available%s", needed / 1e9, available / 1e9, way_out
    )


def _merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with `overrides` put in; a dict is merged into a dict."""
    result = dict(values)
    for key, value in overrides.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
