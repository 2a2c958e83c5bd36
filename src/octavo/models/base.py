"""`DecoderSpec`: everything in which one decoder-only model differs from another, as plain frozen facts.

Written by `hf_config.py` and `gguf_config.py`, read by `decoder.py`. A model gives an equal spec from either
file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.models.rope import RopeSpec
from octavo.program.ops import Gate


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    window: int | None
    """Tokens a query sees, itself included; None for full attention."""
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """One model. Sizes are those of the weights."""

    vocab_size: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    max_positions: int
    """The context length the model was made for."""
    eps: float
    attention_scale: float
    """Multiplies q · k."""
    tied_embeddings: bool
    """The head reads the embedding's matrix."""
    activation: Gate = "silu"
    block: Literal["pre", "sandwich"] = "pre"
    """pre: a norm before attention and ffn. sandwich: one after each, too."""
    qk_norm: bool = False
    """A norm over each head of q and k, before rope."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    embed_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
