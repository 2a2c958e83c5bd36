"""Names and shapes of a decoder's weights.

Stable names are those of Hugging Face without the prefix `model.`; fused ones list the tensors they stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from octavo.models.base import Block, DecoderSpec, DeltaNetSpec
from octavo.program.ops import Weight, WeightPart


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A matrix [N, K] and, in some families, a bias [N]."""

    weight: Weight
    bias: Weight | None


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Norms of q and k that the family does not have are None."""

    qkv_proj: LinearWeights
    """q, its gates if the family has them, k, v."""
    q_norm: Weight | None
    k_norm: Weight | None
    o_proj: LinearWeights


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    """Of a Gated DeltaNet layer."""

    in_proj: LinearWeights
    """q, k, v, then z (the output's gate), b and a (the state's)."""
    conv: Weight
    """[conv_width, conv_channels], flat."""
    decay: Weight
    """-exp(A_log)."""
    dt_bias: Weight
    norm: Weight
    o_proj: LinearWeights


MixerWeights: TypeAlias = "AttentionWeights | DeltaNetWeights"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer but those of its feed-forward part. A norm that the family does not have is None."""

    mixer: MixerWeights
    pre_mixer_norm: Weight | None
    post_mixer_norm: Weight | None
    pre_ffn_norm: Weight | None
    post_ffn_norm: Weight | None


_NORM_NAMES: Mapping[Block, Mapping[str, str]] = {
    "pre": {"pre_mixer": "input_layernorm", "pre_ffn": "post_attention_layernorm"},
    "post": {"post_mixer": "post_attention_layernorm", "post_ffn": "post_feedforward_layernorm"},
    "sandwich": {
        "pre_mixer": "input_layernorm",
        "post_mixer": "post_attention_layernorm",
        "pre_ffn": "pre_feedforward_layernorm",
        "post_ffn": "post_feedforward_layernorm",
    },
}
"""One name stands for different norms."""


def embedding_weight(spec: DecoderSpec) -> Weight:
    """Return the token embedding [V, E]."""
    return matrix("embed_tokens.weight", spec.vocab_size, spec.hidden_size)


def head_weight(spec: DecoderSpec) -> Weight:
    """Return the matrix [V, E] that makes logits: the embedding itself if they are tied."""
    if spec.tied_embeddings:
        return embedding_weight(spec)
    return matrix("lm_head.weight", spec.vocab_size, spec.hidden_size)


def final_norm_weight(spec: DecoderSpec) -> Weight:
    """Return the norm before the head."""
    return vector("norm.weight", spec.hidden_size)


def layer_weights(spec: DecoderSpec, index: int) -> LayerWeights:
    """Return the weights of layer `index`, its feed-forward part excepted."""

    def norm(role: str) -> Weight | None:
        name = _NORM_NAMES[spec.block].get(role)
        return None if name is None else vector(f"layers.{index}.{name}.weight", spec.hidden_size)

    return LayerWeights(
        mixer=_mixer_weights(spec, index),
        pre_mixer_norm=norm("pre_mixer"),
        post_mixer_norm=norm("post_mixer"),
        pre_ffn_norm=norm("pre_ffn"),
        post_ffn_norm=norm("post_ffn"),
    )


def _mixer_weights(spec: DecoderSpec, index: int) -> MixerWeights:
    if spec.layers[index].mixer == "attention":
        return _attention_weights(spec, f"layers.{index}.self_attn")
    assert spec.delta_net is not None, "a spec with delta_net layers has their sizes"
    return _delta_net_weights(spec.delta_net, spec.hidden_size, f"layers.{index}.linear_attn")


def _attention_weights(spec: DecoderSpec, attn: str) -> AttentionWeights:
    hidden = spec.hidden_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    q_rows = 2 * q_size if spec.attention_gate else q_size
    qkv = {f"{attn}.q_proj": q_rows, f"{attn}.k_proj": kv_size, f"{attn}.v_proj": kv_size}
    return AttentionWeights(
        qkv_proj=linear(f"{attn}.qkv_proj", qkv, hidden, spec.qkv_bias),
        q_norm=_qk_norm(spec, f"{attn}.q_norm.weight", q_size),
        k_norm=_qk_norm(spec, f"{attn}.k_norm.weight", kv_size),
        o_proj=linear(f"{attn}.o_proj", {f"{attn}.o_proj": hidden}, q_size, spec.o_bias),
    )


def _qk_norm(spec: DecoderSpec, name: str, size: int) -> Weight | None:
    match spec.qk_norm:
        case "head":
            return vector(name, spec.head_dim)
        case "full":
            return vector(name, size)
        case None:
            return None


def _delta_net_weights(delta_net: DeltaNetSpec, hidden: int, attn: str) -> DeltaNetWeights:
    heads = delta_net.num_value_heads
    value_size = heads * delta_net.value_dim
    parts = {"qkv": delta_net.conv_channels, "z": value_size, "b": heads, "a": heads}
    if delta_net.fused_inputs:
        parts = {"qkvz": delta_net.conv_channels + value_size, "ba": 2 * heads}
    in_proj = {f"{attn}.in_proj_{part}": num_rows for part, num_rows in parts.items()}
    return DeltaNetWeights(
        in_proj=linear(f"{attn}.in_proj", in_proj, hidden, has_bias=False),
        conv=vector(f"{attn}.conv1d.weight", delta_net.conv_width * delta_net.conv_channels),
        decay=vector(f"{attn}.decay", heads),
        dt_bias=vector(f"{attn}.dt_bias", heads),
        norm=vector(f"{attn}.norm.weight", delta_net.value_dim),
        o_proj=linear(f"{attn}.out_proj", {f"{attn}.out_proj": hidden}, value_size, has_bias=False),
    )


def linear(name: str, parts: Mapping[str, int], num_columns: int, has_bias: bool) -> LinearWeights:
    """Return a matrix whose rows are those of `parts`, with a bias of as many parts if the family has one."""
    weights = {f"{part}.weight": num_rows for part, num_rows in parts.items()}
    biases = {f"{part}.bias": num_rows for part, num_rows in parts.items()}
    num_rows = sum(parts.values())
    bias = Weight(f"{name}.bias", (num_rows,), _parts(biases)) if has_bias else None
    return LinearWeights(Weight(f"{name}.weight", (num_rows, num_columns), _parts(weights)), bias)


def matrix(name: str, num_rows: int, num_columns: int) -> Weight:
    """Return a matrix that is one tensor."""
    return Weight(name, (num_rows, num_columns), (WeightPart(name, num_rows),))


def vector(name: str, size: int) -> Weight:
    """Return a vector that is one tensor."""
    return Weight(name, (size,), (WeightPart(name, size),))


def _parts(parts: Mapping[str, int]) -> tuple[WeightPart, ...]:
    return tuple(WeightPart(name, num_rows) for name, num_rows in parts.items())
