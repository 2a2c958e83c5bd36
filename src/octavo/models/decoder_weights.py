"""Names and shapes of a decoder's weights.

Stable names are those of Hugging Face without the prefix `model.`; fused ones list the tensors they stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.models.base import DecoderSpec
from octavo.program.ops import Weight, WeightPart


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A matrix [N, K] and, in some families, a bias [N]."""

    weight: Weight
    bias: Weight | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer. A norm that the family does not have is None."""

    input_layernorm: Weight
    qkv_proj: LinearWeights
    q_norm: Weight | None
    k_norm: Weight | None
    o_proj: LinearWeights
    post_attention_layernorm: Weight
    pre_feedforward_layernorm: Weight | None
    gate_up_proj: LinearWeights
    down_proj: LinearWeights
    post_feedforward_layernorm: Weight | None


def embedding_weight(spec: DecoderSpec) -> Weight:
    """Return the token embedding [V, E]."""
    return _matrix("embed_tokens.weight", "vocab", {"embed_tokens.weight": spec.vocab_size}, "hidden", spec.hidden_size)


def head_weight(spec: DecoderSpec) -> Weight:
    """Return the matrix [V, E] that makes logits: the embedding itself if they are tied."""
    if spec.tied_embeddings:
        return embedding_weight(spec)
    return _matrix("lm_head.weight", "vocab", {"lm_head.weight": spec.vocab_size}, "hidden", spec.hidden_size)


def final_norm_weight(spec: DecoderSpec) -> Weight:
    """Return the norm before the head."""
    return _vector("norm.weight", "hidden", {"norm.weight": spec.hidden_size})


def layer_weights(spec: DecoderSpec, index: int) -> LayerWeights:
    """Return the weights of layer `index`."""
    attn, mlp = f"layers.{index}.self_attn", f"layers.{index}.mlp"
    hidden, ffn = spec.hidden_size, spec.ffn_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def norm(name: str) -> Weight:
        return _vector(f"layers.{index}.{name}.weight", "hidden", {f"layers.{index}.{name}.weight": hidden})

    def head_norm(name: str) -> Weight:
        return _vector(f"{attn}.{name}.weight", "head_dim", {f"{attn}.{name}.weight": spec.head_dim})

    qkv = {f"{attn}.q_proj": q_size, f"{attn}.k_proj": kv_size, f"{attn}.v_proj": kv_size}
    gate_up = {f"{mlp}.gate_proj": ffn, f"{mlp}.up_proj": ffn}
    is_sandwich = spec.block == "sandwich"
    return LayerWeights(
        input_layernorm=norm("input_layernorm"),
        qkv_proj=_linear(f"{attn}.qkv_proj", "qkv", qkv, "hidden", hidden, spec.qkv_bias),
        q_norm=head_norm("q_norm") if spec.qk_norm else None,
        k_norm=head_norm("k_norm") if spec.qk_norm else None,
        o_proj=_linear(f"{attn}.o_proj", "hidden", {f"{attn}.o_proj": hidden}, "heads", q_size, spec.o_bias),
        post_attention_layernorm=norm("post_attention_layernorm"),
        pre_feedforward_layernorm=norm("pre_feedforward_layernorm") if is_sandwich else None,
        gate_up_proj=_linear(f"{mlp}.gate_up_proj", "gate_up", gate_up, "hidden", hidden, spec.mlp_bias),
        down_proj=_linear(f"{mlp}.down_proj", "hidden", {f"{mlp}.down_proj": hidden}, "ffn", ffn, spec.mlp_bias),
        post_feedforward_layernorm=norm("post_feedforward_layernorm") if is_sandwich else None,
    )


def _linear(
    name: str, row_axis: str, parts: Mapping[str, int], column_axis: str, num_columns: int, has_bias: bool
) -> LinearWeights:
    weights = {f"{part}.weight": num_rows for part, num_rows in parts.items()}
    biases = {f"{part}.bias": num_rows for part, num_rows in parts.items()}
    return LinearWeights(
        _matrix(f"{name}.weight", row_axis, weights, column_axis, num_columns),
        _vector(f"{name}.bias", row_axis, biases) if has_bias else None,
    )


def _matrix(name: str, row_axis: str, parts: Mapping[str, int], column_axis: str, num_columns: int) -> Weight:
    return Weight(name, (sum(parts.values()), num_columns), (row_axis, column_axis), _parts(parts))


def _vector(name: str, axis: str, parts: Mapping[str, int]) -> Weight:
    return Weight(name, (sum(parts.values()),), (axis,), _parts(parts))


def _parts(parts: Mapping[str, int]) -> tuple[WeightPart, ...]:
    return tuple(WeightPart(name, num_rows) for name, num_rows in parts.items())
