"""Gemma 1, 2 and 3: scaled embeddings, norms stored as w - 1, gelu gates; config and GGUF metadata of each.

Files leave out what equals the family's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from octavo.formats.gguf import GgufFile
from octavo.models.base import DecoderSpec
from octavo.models.config_reader import ConfigReader
from octavo.models.gguf_config import Metadata, mixed_layers
from octavo.models.gguf_config import decoder_spec as gguf_decoder_spec
from octavo.models.gguf_config import read_rope as gguf_rope
from octavo.models.hf_config import FULL, SLIDING, decoder_spec, read_layer_types, read_num_layers
from octavo.models.hf_rope import read_rope
from octavo.models.rope import RopeSpec

_DEFAULTS: Mapping[str, object] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
_GEMMA2_DEFAULTS: Mapping[str, object] = {**_DEFAULTS, "sliding_window": 4096, "query_pre_attn_scalar": 256}
_GEMMA3_DEFAULTS: Mapping[str, object] = {
    **_GEMMA2_DEFAULTS,
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "_sliding_window_pattern": 6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
_GEMMA2_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of each family's 27B, whose attention has another scale."""


def gemma_spec(config: ConfigReader) -> DecoderSpec:
    """Gemma 1: Llama with scaled embeddings. `hidden_act` is not read: "gelu" there meant the tanh form."""
    config = config.over(_DEFAULTS)
    spec = decoder_spec(config, [FULL] * read_num_layers(config))
    bias = config.flag("attention_bias", False)
    return replace(spec, embed_scale=spec.hidden_size**0.5, qkv_bias=bias, o_bias=bias)


def gemma2_spec(config: ConfigReader) -> DecoderSpec:
    """Gemma 2: norms around each sub-layer, a window on every other layer, attention and logits capped."""
    config = config.over(_GEMMA2_DEFAULTS)
    by_pattern = [SLIDING if i % 2 == 0 else FULL for i in range(read_num_layers(config))]
    spec = decoder_spec(config, read_layer_types(config, by_pattern))
    return _sandwich(config, spec, _GEMMA2_CAPS)


def gemma3_spec(config: ConfigReader) -> DecoderSpec:
    """Gemma 3: norms around each sub-layer, a window on five of six layers, each kind with its own rope."""
    config = config.over(_GEMMA3_DEFAULTS)
    pattern = config.size("sliding_window_pattern", config.size("_sliding_window_pattern"))
    by_pattern = [FULL if (i + 1) % pattern == 0 else SLIDING for i in range(read_num_layers(config))]
    spec = decoder_spec(config, read_layer_types(config, by_pattern), _gemma3_rope)
    return replace(_sandwich(config, spec, {}), qk_norm="head")


def gemma_gguf_spec(file: GgufFile) -> DecoderSpec:
    """Gemma 1."""
    spec = gguf_decoder_spec(Metadata(file))
    return replace(spec, activation="gelu_tanh", embed_scale=spec.hidden_size**0.5)


def gemma2_gguf_spec(file: GgufFile) -> DecoderSpec:
    """Gemma 2. The metadata lacks the pattern of windows, the activation and the norms' places."""
    metadata = Metadata(file)
    return replace(
        _sandwich_gguf(metadata, 2, metadata.size("attention.sliding_window", 4096), local_theta=None),
        attention_softcap=metadata.number("attn_logit_softcapping", _GEMMA2_CAPS["attn_logit_softcapping"]),
        final_softcap=metadata.number("final_logit_softcapping", _GEMMA2_CAPS["final_logit_softcapping"]),
    )


def gemma3_gguf_spec(file: GgufFile) -> DecoderSpec:
    """Gemma 3. The metadata also lacks the local rope base."""
    metadata = Metadata(file)
    spec = _sandwich_gguf(metadata, 6, metadata.size("attention.sliding_window"), local_theta=10_000.0)
    return replace(spec, qk_norm="head", final_softcap=metadata.optional_number("final_logit_softcapping"))


def _sandwich(config: ConfigReader, spec: DecoderSpec, caps: Mapping[str, float]) -> DecoderSpec:
    """Add what the second and third have in common. `caps` are those of a file that does not mention them."""

    def cap(key: str) -> float | None:
        default = None if config.is_null(key) else caps.get(key)
        return config.number(key, default) if config.has(key) or default else None

    bias = config.flag("attention_bias", False)
    return replace(
        spec,
        block="sandwich",
        qkv_bias=bias,
        o_bias=bias,
        embed_scale=spec.hidden_size**0.5,
        attention_scale=config.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=cap("attn_logit_softcapping"),
        final_softcap=cap("final_logit_softcapping"),
    )


def _gemma3_rope(config: ConfigReader, kind: str, head_dim: int) -> RopeSpec:
    """Return the rope of one kind of layer; in the 4.x dialect the local one has its own base and no scaling."""
    if kind == SLIDING and not config.has("rope_parameters"):
        return RopeSpec(config.number("rope_local_base_freq"), head_dim)
    return read_rope(config, kind, head_dim)


def _sandwich_gguf(metadata: Metadata, pattern: int, window: int, *, local_theta: float | None) -> DecoderSpec:
    """Read what the second and third have in common. `local_theta`: of windowed layers; None: as of full ones."""
    spec = gguf_decoder_spec(metadata)
    full = gguf_rope(metadata, spec.head_dim)
    sliding = full
    if local_theta is not None:
        sliding = RopeSpec(metadata.number("rope.freq_base_swa", local_theta), full.rotary_dim)
    is_largest = len(spec.layers) == _LARGEST[metadata.prefix]
    return replace(
        spec,
        layers=mixed_layers(metadata, pattern, window, full, sliding),
        activation="gelu_tanh",
        block="sandwich",
        embed_scale=spec.hidden_size**0.5,
        attention_scale=(spec.hidden_size / spec.num_heads if is_largest else spec.head_dim) ** -0.5,
    )
