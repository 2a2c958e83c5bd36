"""`DecoderSpec`: everything in which one decoder-only model differs from another, as plain frozen facts.

Written by `hf_config.py`, `gguf_config.py` and the files of odd families, read by `decoder.py`. A model gives an equal
spec from either kind of file, but for the order of its value heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.models.rope import RopeSpec
from octavo.program.moe_ops import Routing
from octavo.program.ops import Gate

Mixer = Literal["attention", "delta_net"]
FeedForward = Literal["dense", "moe"]
QkNorm = Literal["head", "full"]
Block = Literal["pre", "post", "sandwich"]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    window: int | None
    """Tokens a query sees, itself included; None for full attention."""
    rope: RopeSpec | None
    """None: q and k are not rotated, so that positions show in the mask alone."""
    mixer: Mixer = "attention"
    """What mixes tokens. A delta_net layer has neither window nor rope."""
    ffn: FeedForward = "dense"
    """What follows. The experts of moe layers are `DecoderSpec.moe`."""


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """The sizes of Gated DeltaNet layers."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    tiled_heads: bool = False
    """The order of the value heads in the file: value head h reads key head h % key heads instead of h // r."""
    fused_inputs: bool = False
    """Whether the file has the input projections as two matrices, q | k | v | z and b | a, instead of four."""

    @property
    def conv_channels(self) -> int:
        """Width of q, k and v side by side."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class SharedExpertSpec:
    """The expert that every row takes beside those it chooses."""

    ffn_size: int
    is_gated: bool
    """Whether its result is multiplied with the sigmoid of a number that is computed from the row."""


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """The experts of moe layers."""

    routing: Routing
    ffn_size: int
    """Width of each expert."""
    shared: SharedExpertSpec | None = None
    choice_bias: bool = False
    """Whether a bias of each expert counts when experts are chosen, and only then."""


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
    block: Block = "pre"
    """Where norms are: before attention and ffn, after each, or both."""
    qk_norm: QkNorm | None = None
    """A norm of q and k before rope: over each head, or over all of them together."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    """Multiplies what attention and ffn add to the hidden state."""
    logit_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    attention_gate: bool = False
    """q_proj makes a gate beside each query: attention's result times its sigmoid goes into o_proj."""
    delta_net: DeltaNetSpec | None = None
    """Of the layers with this mixer."""
    moe: MoeSpec | None = None
    """Of the layers with this ffn."""
