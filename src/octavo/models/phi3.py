"""Phi 3, 3.5 and 4: Llama with fused projections, and divisors of its own for each frequency in long contexts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_quants import dequantize
from octavo.models.base import DecoderSpec, LayerSpec
from octavo.models.config_reader import ConfigReader
from octavo.models.fused import split_fused_gguf
from octavo.models.gguf_config import Metadata, decoder_spec
from octavo.models.hf_config import mistral_spec
from octavo.models.rope import LongRopeScaling, RopeSpec, longrope_attention_factor
from octavo.weights.checkpoint import Checkpoint

_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")


def hf_spec(config: ConfigReader) -> DecoderSpec:
    """Phi 3, 3.5 and 4: Llama with q, k, v and gate, up fused, longrope, and in some a window on every layer."""
    return mistral_spec(config)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Phi 3, 3.5 and 4."""
    metadata = Metadata(file)
    spec = decoder_spec(metadata)
    rope = spec.layers[0].rope
    assert rope is not None, "of a family whose layers all rotate"
    if any(name in file.tensors for name in _FACTORS):
        rope = _with_factors(metadata, rope, spec.max_positions)
    layer = LayerSpec(metadata.size("attention.sliding_window", 0) or None, rope)
    return replace(spec, layers=(layer,) * len(spec.layers))


def adapt_gguf(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors as the program wants them."""
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in _FACTORS}
    return split_fused_gguf(Checkpoint(checkpoint.source, tensors), spec)


def _with_factors(metadata: Metadata, rope: RopeSpec, max_positions: int) -> RopeSpec:
    original = metadata.size("rope.scaling.original_context_length")
    if original < 2:
        metadata.fail("rope.scaling.original_context_length", f"is {original}, must be above 1")
    usual = longrope_attention_factor(max_positions / original, original)
    factor = metadata.number("rope.scaling.attn_factor", usual)
    short, long = (_factors(metadata.file, name, rope.rotary_dim // 2) for name in _FACTORS)
    return replace(rope, scaling=LongRopeScaling(short, long, original, factor))


def _factors(file: GgufFile, name: str, count: int) -> tuple[float, ...]:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelLoadError(f"{file.path}: tensor {name!r} is missing, though its counterpart is there")
    values = dequantize(tensor)
    if values.shape != (count,) or not (np.isfinite(values).all() and (values > 0).all()):
        raise ModelLoadError(f"{file.path}: tensor {name!r} is {values.shape}, expected {count} positive numbers")
    return tuple(values.tolist())
