"""Reads the metadata of a GGUF file into a `DecoderSpec`, and adds what the format leaves to be known per architecture.

Biases and a separate head show in the tensor list only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import numpy as np

from octavo.cache_spec import MAX_HEAD_DIM, MIN_HEAD_DIM
from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_quants import dequantize
from octavo.models.base import DecoderSpec, LayerSpec
from octavo.models.config_reader import MAX_NUMBER, MAX_SIZE, MIN_NUMBER
from octavo.models.rope import (
    DividedFrequencies,
    LinearScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    yarn_attention_factor,
)


def qwen2_spec(file: GgufFile) -> DecoderSpec:
    """Qwen 2 and 2.5."""
    return decoder_spec(Metadata(file))


def qwen3_spec(file: GgufFile) -> DecoderSpec:
    """Qwen 3."""
    return replace(decoder_spec(Metadata(file)), qk_norm="head")


def granite_spec(file: GgufFile) -> DecoderSpec:
    """Granite 3."""
    metadata = Metadata(file)
    spec = decoder_spec(metadata)
    return replace(
        spec,
        embed_scale=metadata.number("embedding_scale", 1.0),
        attention_scale=metadata.number("attention.scale", spec.attention_scale),
        residual_scale=metadata.number("residual_scale", 1.0),
        logit_scale=1.0 / metadata.number("logit_scale", 1.0),
    )


def olmo2_spec(file: GgufFile) -> DecoderSpec:
    """OLMo 2, and OLMo 3, which has a window on three of four layers, whose rope has no scaling."""
    metadata = Metadata(file)
    spec = replace(decoder_spec(metadata), block="post", qk_norm="full")
    window = metadata.size("attention.sliding_window", 0)
    if not window:
        return spec
    rope = read_rope(metadata, spec.head_dim)
    theta = metadata.number("rope.freq_base_swa", rope.theta)
    return replace(spec, layers=mixed_layers(metadata, 4, window, rope, RopeSpec(theta, rope.rotary_dim)))


def smollm3_spec(file: GgufFile) -> DecoderSpec:
    """SmolLM 3: every fourth layer is without rotation, which the metadata does not say."""
    spec = decoder_spec(Metadata(file))
    without = replace(spec.layers[0], rope=None)
    return replace(spec, layers=tuple(without if i % 4 == 3 else layer for i, layer in enumerate(spec.layers)))


class Metadata:
    """Checked access to the keys of the file's architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.prefix = file.require("general.architecture", str)

    def size(self, key: str, default: int | None = None) -> int:
        """Return an integer up to MAX_SIZE, positive unless the default is 0, or the default if the key is absent."""
        name = f"{self.prefix}.{key}"
        value = self.file.require(name, int) if default is None else self.file.optional(name, int)
        if value is None:
            return default or 0
        smallest = 0 if default == 0 else 1
        if not smallest <= value <= MAX_SIZE:
            self.fail(key, f"is {value}, expected an integer from {smallest} to {MAX_SIZE}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number of sensible magnitude. Without a default the key must exist."""
        value = self.optional_number(key)
        if value is not None:
            return value
        return self.file.require(f"{self.prefix}.{key}", float) if default is None else default

    def optional_number(self, key: str) -> float | None:
        """Return a positive number of sensible magnitude if the key exists."""
        value = self.file.optional(f"{self.prefix}.{key}", float)
        if value is None:
            return None
        with np.errstate(over="ignore"):
            number = float(str(np.float32(value)))  # the decimal that the writer meant: 1e-05, not 9.99999974e-06
        if not MIN_NUMBER <= number <= MAX_NUMBER:
            self.fail(key, f"is {value}, expected a number from {MIN_NUMBER:g} to {MAX_NUMBER:g}")
        return number

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        return self.file.optional(f"{self.prefix}.{key}", str) or default

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise the error that every bad value ends in."""
        name = f"{self.prefix}.{key}"
        raise ModelLoadError(f"{self.file.path}: metadata key {name!r} {problem}")


def decoder_spec(metadata: Metadata) -> DecoderSpec:
    """Read what all architectures share: every layer full, norms before the sub-layers."""
    file = metadata.file
    hidden_size = metadata.size("embedding_length")
    num_heads = metadata.size("attention.head_count")
    num_kv_heads = metadata.size("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        metadata.fail("attention.head_count", f"is {num_heads}, not a multiple of head_count_kv {num_kv_heads}")
    head_dim = metadata.size("attention.key_length", max(hidden_size // num_heads, 1))
    if not MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM:
        metadata.fail("attention.key_length", f"is {head_dim}, supported: {MIN_HEAD_DIM} to {MAX_HEAD_DIM}")
    if metadata.size("attention.value_length", head_dim) != head_dim:
        metadata.fail("attention.value_length", f"differs from key_length {head_dim}: not supported")
    num_layers = metadata.size("block_count")
    if num_layers > len(file.tensors):
        metadata.fail("block_count", f"is {num_layers}, but the file has only {len(file.tensors)} tensors")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{file.path}: tensor 'token_embd.weight' is missing")
    layer = LayerSpec(None, read_rope(metadata, head_dim))
    return DecoderSpec(
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        ffn_size=_ffn_size(metadata),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        layers=(layer,) * num_layers,
        max_positions=metadata.size("context_length"),
        eps=metadata.number("attention.layer_norm_rms_epsilon"),
        attention_scale=head_dim**-0.5,
        tied_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
    )


def _ffn_size(metadata: Metadata) -> int:
    """Return the width of dense layers; files of models that have experts on every layer may leave it out."""
    has_experts = metadata.size("expert_count", 0) > 0
    expert_size = metadata.size("expert_feed_forward_length", 0) if has_experts else 0
    return metadata.size("feed_forward_length", expert_size or None)


def mixed_layers(
    metadata: Metadata, pattern: int, window: int, full_rope: RopeSpec, sliding_rope: RopeSpec
) -> tuple[LayerSpec, ...]:
    """Return layers with a window but for every `pattern`-th, or for those that the file lists."""
    num_layers = metadata.size("block_count")
    key = "attention.sliding_window_pattern"
    listed = metadata.file.metadata.get(f"{metadata.prefix}.{key}")
    if isinstance(listed, np.ndarray):
        if listed.dtype != np.bool_ or len(listed) < num_layers:
            metadata.fail(key, f"must be a number or a list of {num_layers} booleans")
        is_sliding = [bool(flag) for flag in listed[:num_layers]]
    else:
        pattern = metadata.size(key, pattern)
        is_sliding = [(i + 1) % pattern != 0 for i in range(num_layers)]
    full, sliding = LayerSpec(None, full_rope), LayerSpec(window, sliding_rope)
    return tuple(sliding if flag else full for flag in is_sliding)


def read_rope(metadata: Metadata, head_dim: int) -> RopeSpec:
    """Return the rope of layers without a window."""
    rotary_dim = metadata.size("rope.dimension_count", head_dim)
    if rotary_dim % 2 or rotary_dim > head_dim:
        metadata.fail("rope.dimension_count", f"is {rotary_dim}, expected an even number up to {head_dim}")
    theta = metadata.number("rope.freq_base", 10_000.0)
    if theta <= 1.0:
        metadata.fail("rope.freq_base", f"is {theta}, must be above 1")
    return RopeSpec(theta, rotary_dim, _rope_scaling(metadata, rotary_dim))


def _rope_scaling(metadata: Metadata, rotary_dim: int) -> RopeScaling | None:
    divisors = metadata.file.tensors.get("rope_freqs.weight")
    if divisors is not None:
        values = dequantize(divisors)
        if values.shape != (rotary_dim // 2,) or not (np.isfinite(values).all() and (values > 0).all()):
            problem = f"is {values.shape}, expected {rotary_dim // 2} positive numbers"
            raise ModelLoadError(f"{metadata.file.path}: tensor 'rope_freqs.weight' {problem}")
        return DividedFrequencies(tuple(values.tolist()))
    kind = metadata.text("rope.scaling.type", "linear")
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0))
    if kind == "yarn":
        attention_factor = yarn_attention_factor(factor) * metadata.number("rope.scaling.attn_factor", 1.0)
        return YarnScaling(factor, metadata.size("rope.scaling.original_context_length"), attention_factor)
    if kind not in ("none", "linear"):
        metadata.fail("rope.scaling.type", f"is {kind!r}, supported: none, linear, yarn")
    return None if kind == "none" or factor == 1.0 else LinearScaling(factor)
