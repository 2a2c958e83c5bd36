"""Reads a Hugging Face config.json into a `DecoderSpec`: one function per family, both dialects of the file.

The 4.x dialect has `rope_theta` and `rope_scaling` at the top; 5.x has `rope_parameters`, for some models per layer
type (see `hf_rope.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.cache_spec import MAX_HEAD_DIM, MIN_HEAD_DIM
from octavo.models.base import DecoderSpec, LayerSpec
from octavo.models.config_reader import MAX_SIZE, ConfigReader
from octavo.models.hf_rope import read_rope
from octavo.models.rope import RopeSpec
from octavo.program.ops import Gate

SLIDING = "sliding_attention"
FULL = "full_attention"
LINEAR = "linear_attention"

_GATES: dict[str, Gate] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def llama_spec(config: ConfigReader, layer_types: list[str] | None = None) -> DecoderSpec:
    """Llama 2 and 3, SmolLM2: what the others are told apart by."""
    bias = config.flag("attention_bias", False)
    spec = decoder_spec(config, layer_types or [FULL] * read_num_layers(config))
    return replace(spec, qkv_bias=bias, o_bias=bias, mlp_bias=config.flag("mlp_bias", False))


def mistral_spec(config: ConfigReader) -> DecoderSpec:
    """Mistral 7B and Nemo: Llama, in the first version with a window on every layer."""
    kind = SLIDING if config.has("sliding_window") else FULL
    return decoder_spec(config, [kind] * read_num_layers(config))


def qwen2_spec(config: ConfigReader) -> DecoderSpec:
    """Qwen 2 and 2.5: Llama with biases on q, k and v."""
    return replace(decoder_spec(config, _qwen_layer_types(config)), qkv_bias=True)


def qwen3_spec(config: ConfigReader) -> DecoderSpec:
    """Qwen 3: Llama with a norm on each head of q and k."""
    bias = config.flag("attention_bias", False)
    spec = decoder_spec(config, _qwen_layer_types(config))
    return replace(spec, qk_norm="head", qkv_bias=bias, o_bias=bias)


def granite_spec(config: ConfigReader) -> DecoderSpec:
    """Granite 3: Llama with four multipliers."""
    return replace(
        llama_spec(config),
        embed_scale=config.number("embedding_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1.0 / config.number("logits_scaling", 1.0),
    )


def smollm3_spec(config: ConfigReader) -> DecoderSpec:
    """SmolLM 3: Llama without rotation on every fourth layer."""
    num_layers = read_num_layers(config)
    interval = config.size("no_rope_layer_interval", 4)
    rotates = [int((i + 1) % interval != 0) for i in range(num_layers)]
    if config.has("no_rope_layers"):  # whose entries are 1 for layers with rope
        rotates = config.counts("no_rope_layers")
    if len(rotates) < num_layers:
        config.fail("no_rope_layers", f"has {len(rotates)} entries for {num_layers} layers")
    kinds = [FULL] * num_layers
    if config.flag("use_sliding_window", False) and config.has("sliding_window"):
        kinds = read_layer_types(config, [FULL if has_rope else SLIDING for has_rope in rotates[:num_layers]])
    spec = llama_spec(config.over({"rope_theta": 2e6, "tie_word_embeddings": True}), kinds)
    layers = zip(spec.layers, rotates, strict=False)
    return replace(spec, layers=tuple(layer if has_rope else replace(layer, rope=None) for layer, has_rope in layers))


def olmo2_spec(config: ConfigReader) -> DecoderSpec:
    """OLMo 2: Llama with norms after the sub-layers instead of before, and over all of q and all of k."""
    return replace(llama_spec(config), block="post", qk_norm="full")


def olmo3_spec(config: ConfigReader) -> DecoderSpec:
    """OLMo 3: OLMo 2 with a window on three of four layers, whose rope has no scaling."""
    by_pattern = [FULL if (i + 1) % 4 == 0 else SLIDING for i in range(read_num_layers(config))]
    spec = decoder_spec(config.over({"rope_theta": 5e5}), read_layer_types(config, by_pattern), _olmo3_rope)
    bias = config.flag("attention_bias", False)
    return replace(spec, block="post", qk_norm="full", qkv_bias=bias, o_bias=bias)


def decoder_spec(
    config: ConfigReader,
    layer_types: list[str],
    rope_of: Callable[[ConfigReader, str, int], RopeSpec] = read_rope,
) -> DecoderSpec:
    """Read what all families share. `layer_types` says which layers have the window, and which are recurrent."""
    hidden_size = config.size("hidden_size")
    num_heads = config.size("num_attention_heads")
    num_kv_heads = config.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        config.fail("num_attention_heads", f"is {num_heads}, not a multiple of num_key_value_heads {num_kv_heads}")
    if not config.has("head_dim") and hidden_size % num_heads:
        config.fail("hidden_size", f"is {hidden_size}, not a multiple of num_attention_heads {num_heads}")
    head_dim = config.size("head_dim", max(hidden_size // num_heads, 1))
    if not MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM:
        config.fail("head_dim", f"is {head_dim}, supported: {MIN_HEAD_DIM} to {MAX_HEAD_DIM}")
    layer_of = {}
    for kind in sorted(set(layer_types)):
        if kind == LINEAR:
            layer_of[kind] = LayerSpec(None, rope_of(config, FULL, head_dim), mixer="delta_net")
            continue
        window = config.size("sliding_window") if kind == SLIDING else None
        layer_of[kind] = LayerSpec(window, rope_of(config, kind, head_dim))
    return DecoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        ffn_size=config.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        layers=tuple(layer_of[kind] for kind in layer_types),
        max_positions=_max_positions(config),
        eps=config.number("rms_norm_eps", 1e-6),
        attention_scale=head_dim**-0.5,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        activation=_activation(config),
    )


def read_num_layers(config: ConfigReader) -> int:
    """Return the number of layers."""
    num_layers = config.size("num_hidden_layers")
    if num_layers > 1024:
        config.fail("num_hidden_layers", f"is {num_layers}, at most 1024 are supported")
    return num_layers


def read_layer_types(
    config: ConfigReader, default: list[str], supported: tuple[str, ...] = (SLIDING, FULL)
) -> list[str]:
    """Return the type of each layer: the file's list, or what the family does without one."""
    if not config.has("layer_types"):
        return default
    layer_types = config.strings("layer_types")
    if len(layer_types) != len(default):
        config.fail("layer_types", f"has {len(layer_types)} entries for {len(default)} layers")
    for kind in layer_types:
        if kind not in supported:
            config.fail("layer_types", f"has {kind!r}, supported: {', '.join(supported)}")
    return layer_types


def _qwen_layer_types(config: ConfigReader) -> list[str]:
    """Return the layer types; the window is in the file but off unless `use_sliding_window`."""
    num_layers = read_num_layers(config)
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return [FULL] * num_layers
    first = config.count("max_window_layers", 28)
    return read_layer_types(config, [SLIDING if i >= first else FULL for i in range(num_layers)])


def _olmo3_rope(config: ConfigReader, kind: str, head_dim: int) -> RopeSpec:
    """Return the rope of one kind of layer; in the 4.x dialect the scaling is that of full layers."""
    if kind == SLIDING and not config.has("rope_parameters"):
        return RopeSpec(config.number("rope_theta"), head_dim)
    return read_rope(config, kind, head_dim)


def _max_positions(config: ConfigReader) -> int:
    """Return the context length; files with yarn of the 4.x time, or with dynamic, state that before the scaling."""
    positions = config.size("max_position_embeddings", 2048)
    scaling = config.nested("rope_parameters") or config.nested("rope_scaling")
    if scaling is None or scaling.text("rope_type", scaling.text("type", "default")) not in ("yarn", "dynamic"):
        return positions
    original = scaling.size("original_max_position_embeddings", positions)
    positions = max(positions, int(original * scaling.number("factor", 1.0)))
    if positions > MAX_SIZE:
        scaling.fail("factor", f"makes a context of {positions} tokens, at most {MAX_SIZE} are supported")
    return positions


def _activation(config: ConfigReader) -> Gate:
    key = "hidden_activation" if config.has("hidden_activation") else "hidden_act"
    name = config.text(key, "silu")
    if name not in _GATES:
        config.fail(key, f"is {name!r}, supported: {', '.join(_GATES)}")
    return _GATES[name]
