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
from octavo.models.config_reader import MAX_SIZE
from octavo.models.rope import (
    DividedFrequencies,
    LinearScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    yarn_attention_factor,
)

_GEMMA3_27B_LAYERS = 62


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
    """OLMo 2."""
    return replace(decoder_spec(Metadata(file)), block="post", qk_norm="full")


def gemma3_spec(file: GgufFile) -> DecoderSpec:
    """Gemma 3. The metadata lacks the pattern of windows, the local rope base, the activation and the norms' places."""
    metadata = Metadata(file)
    spec = decoder_spec(metadata)
    window = metadata.size("attention.sliding_window")
    pattern = metadata.size("attention.sliding_window_pattern", 6)
    full = spec.layers[0]
    sliding = LayerSpec(window, RopeSpec(metadata.number("rope.freq_base_swa", 10_000.0), full.rope.rotary_dim))
    num_layers = len(spec.layers)
    is_27b = num_layers == _GEMMA3_27B_LAYERS
    return replace(
        spec,
        layers=tuple(full if (i + 1) % pattern == 0 else sliding for i in range(num_layers)),
        activation="gelu_tanh",
        block="sandwich",
        qk_norm="head",
        embed_scale=spec.hidden_size**0.5,
        attention_scale=(spec.hidden_size / spec.num_heads if is_27b else spec.head_dim) ** -0.5,
        final_softcap=metadata.optional_number("final_logit_softcapping"),
    )


class Metadata:
    """Checked access to the keys of the file's architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.prefix = file.require("general.architecture", str)

    def size(self, key: str, default: int | None = None) -> int:
        """Return an integer up to MAX_SIZE: positive, or the default if the key is absent."""
        name = f"{self.prefix}.{key}"
        value = self.file.require(name, int) if default is None else self.file.optional(name, int)
        if value is None:
            return default or 0
        if not (0 if default == 0 else 1) <= value <= MAX_SIZE:
            self.fail(key, f"is {value}, expected an integer from 1 to {MAX_SIZE}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive, finite number. Without a default the key must exist."""
        value = self.optional_number(key)
        if value is not None:
            return value
        return self.file.require(f"{self.prefix}.{key}", float) if default is None else default

    def optional_number(self, key: str) -> float | None:
        """Return a positive, finite number if the key exists."""
        value = self.file.optional(f"{self.prefix}.{key}", float)
        if value is None:
            return None
        if not (value > 0 and np.isfinite(value)):
            self.fail(key, f"is {value}, expected a positive number")
        return float(str(np.float32(value)))  # the decimal that the file's writer meant: 1e-05, not 9.99999974e-06

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        return self.file.optional(f"{self.prefix}.{key}", str) or default

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise the error that every bad value ends in."""
        raise ModelLoadError(f"{self.file.path}: metadata key {self.prefix}.{key!r} {problem}")


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
    layer = LayerSpec(None, _rope(metadata, head_dim))
    return DecoderSpec(
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        ffn_size=metadata.size("feed_forward_length"),
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


def _rope(metadata: Metadata, head_dim: int) -> RopeSpec:
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
