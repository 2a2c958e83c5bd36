"""The Gated DeltaNet mixer as a piece of a program, and the cache group that its layers share.

Source: Yang et al. 2024, arXiv:2412.06464.
"""

from __future__ import annotations

from octavo.cache_spec import StateGroupSpec
from octavo.models.base import DecoderSpec, DeltaNetSpec
from octavo.models.decoder_weights import DeltaNetWeights
from octavo.program.builder import ProgramBuilder
from octavo.program.ops import CacheRef, Value


def state_group(spec: DecoderSpec, num_layers: int, block_size: int, *, keeps_border: bool) -> StateGroupSpec:
    """Return the cache group of all recurrent layers."""
    sizes = _sizes(spec)
    return StateGroupSpec(
        num_layers=num_layers,
        num_key_heads=sizes.num_key_heads,
        num_value_heads=sizes.num_value_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        conv_width=sizes.conv_width,
        conv_channels=sizes.conv_channels,
        block_size=block_size,
        keeps_border=keeps_border,
    )


def write_mixer(b: ProgramBuilder, h: Value, spec: DecoderSpec, w: DeltaNetWeights, cache: CacheRef) -> Value:
    """Write the mixer up to its output projection: [T, value heads * value dim]."""
    sizes = _sizes(spec)
    heads = sizes.num_value_heads
    widths = [sizes.conv_channels, heads * sizes.value_dim, heads, heads]
    qkv, z, beta, alpha = b.linear_split(h, w.in_proj.weight, widths)
    qkv = b.causal_conv1d(qkv, w.conv, cache)
    out = b.gated_delta_rule(qkv, beta, alpha, w.decay, w.dt_bias, cache, tiled_heads=sizes.tiled_heads)
    out = b.rms_norm(out, w.norm, eps=spec.eps)
    return b.mul_by_gate(out, z, "silu")


def _sizes(spec: DecoderSpec) -> DeltaNetSpec:
    assert spec.delta_net is not None, "a spec with delta_net layers has their sizes"
    return spec.delta_net
