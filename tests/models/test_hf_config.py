"""config.json in both dialects, and what happens when it is wrong or describes a model that is not supported."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import read_config

from octavo.errors import ModelLoadError
from octavo.models.base import DecoderSpec
from octavo.models.registry import spec_from_hf
from octavo.models.rope import DynamicScaling, LinearScaling, LongRopeScaling, RopeSpec, YarnScaling

LONG_ROPE = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}


def make_config(base: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return a tiny checkpoint's config with keys replaced."""
    return {**read_config(base), **changes}


def make_spec(base: str = "llama", **changes: Any) -> DecoderSpec:
    return spec_from_hf(make_config(base, **changes), "config.json")


def make_gemma(**changes: Any) -> dict[str, Any]:
    """Return a config of the 4.x dialect as hub files have it: little more than what differs from the defaults."""
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "sliding_window": 512,
        "vocab_size": 262_144,
    }
    return {**config, **changes}


def test_both_dialects_give_the_same_spec() -> None:
    old = make_spec("llama")
    parameters = {"rope_type": "default", "rope_theta": 500_000.0}
    new = make_config("llama", rope_parameters=parameters)
    del new["rope_theta"], new["rope_scaling"]
    assert spec_from_hf(new, "config.json") == old


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rope_type_may_be_called_type(key: str) -> None:
    spec = make_spec(rope_scaling={key: "linear", "factor": 4.0})
    assert spec.layers[0].rope == RopeSpec(500_000.0, 16, LinearScaling(4.0))


def test_missing_rope_settings_mean_plain_rope_with_the_usual_base() -> None:
    config = make_config("llama")
    del config["rope_theta"], config["rope_scaling"]
    assert spec_from_hf(config, "config.json").layers[0].rope == RopeSpec(10_000.0, 16)


def test_yarn_without_an_original_length_extends_the_stated_one() -> None:
    spec = make_spec(rope_scaling={"type": "yarn", "factor": 4.0})
    scaling = spec.layers[0].rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.original_max_positions, spec.max_positions) == (512, 2048)


def test_yarn_with_two_mscales_uses_their_ratio() -> None:
    settings = {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    scaling = make_spec(rope_scaling=settings).layers[0].rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.attention_factor == 1.0


def test_dynamic_scaling_is_read() -> None:
    spec = make_spec(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert spec.layers[0].rope.scaling == DynamicScaling(2.0, 512)


def test_longrope_takes_the_original_length_from_the_top_level() -> None:
    settings = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    scaling = make_spec(rope_scaling=settings, original_max_position_embeddings=128).layers[0].rope.scaling
    assert isinstance(scaling, LongRopeScaling)
    assert scaling.original_max_positions == 128
    assert scaling.attention_factor > 1.0


def test_partial_rotary_factor_narrows_the_rotation() -> None:
    assert make_spec(partial_rotary_factor=0.5).layers[0].rope.rotary_dim == 8


def test_head_dim_defaults_to_the_hidden_size_over_the_heads() -> None:
    assert make_spec(head_dim=None).head_dim == 16
    assert make_spec(head_dim=24).head_dim == 24


def test_qwen_window_is_off_unless_asked_for() -> None:
    assert {layer.window for layer in make_spec("qwen3", sliding_window=32).layers} == {None}


def test_qwen_window_starts_at_max_window_layers() -> None:
    config = make_config("qwen3", sliding_window=32, use_sliding_window=True, max_window_layers=1)
    del config["layer_types"]
    assert [layer.window for layer in spec_from_hf(config, "config.json").layers] == [None, 32, 32]


def test_mistral_window_is_on_every_layer() -> None:
    assert [layer.window for layer in make_spec("mistral").layers] == [16, 16, 16]
    assert [layer.window for layer in make_spec("mistral", sliding_window=None).layers] == [None, None, None]


def test_gemma_of_the_hub_gets_its_pattern_and_local_rope_from_the_family() -> None:
    spec = spec_from_hf(make_gemma(), "config.json")
    assert [layer.window for layer in spec.layers] == ([512] * 5 + [None]) * 3
    assert spec.layers[0].rope == RopeSpec(10_000.0, 256)
    assert spec.layers[5].rope == RopeSpec(1_000_000.0, 256)
    assert (spec.head_dim, spec.attention_scale, spec.embed_scale) == (256, 256**-0.5, 640**0.5)
    assert spec.tied_embeddings
    assert spec.activation == "gelu_tanh"


def test_gemma_scales_only_the_rope_of_its_full_layers() -> None:
    spec = spec_from_hf(make_gemma(rope_scaling={"rope_type": "linear", "factor": 8.0}), "config.json")
    assert spec.layers[0].rope.scaling is None
    assert spec.layers[5].rope.scaling == LinearScaling(8.0)


def test_multimodal_config_is_read_from_its_text_part() -> None:
    text = make_gemma()
    wrapped = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "vision_config": {}}
    assert spec_from_hf(wrapped, "config.json") == spec_from_hf(text, "config.json")


def test_tie_of_a_multimodal_config_may_be_at_its_top() -> None:
    wrapped = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": make_gemma(),
        "tie_word_embeddings": False,
    }
    assert not spec_from_hf(wrapped, "config.json").tied_embeddings


@pytest.mark.parametrize("method", ["fp8", "bitsandbytes", "mxfp4", "quark"])
def test_quantized_checkpoint_is_refused_with_what_is_supported(method: str) -> None:
    with pytest.raises(
        ModelLoadError, match=rf"config.json: quantization_config .*{method}.*BF16.*quantization=.*GGUF in .*Q4_K"
    ):
        make_spec(quantization_config={"quant_method": method})


def test_unknown_architecture_is_refused_with_what_is_supported() -> None:
    with pytest.raises(
        ModelLoadError, match=r"config.json: architecture MambaForCausalLM .* supported: .*LlamaForCausalLM"
    ):
        make_spec(architectures=["MambaForCausalLM"])


@pytest.mark.parametrize(
    "key", ["architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
def test_missing_key_is_named(key: str) -> None:
    config = make_config()
    del config[key]
    with pytest.raises(ModelLoadError, match=rf"config\.json: {key} is missing"):
        spec_from_hf(config, "config.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -64),
        ("hidden_size", 2**63),
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("head_dim", 8),
        ("head_dim", 15),
        ("head_dim", 520),
        ("num_hidden_layers", 100_000),
        ("num_attention_heads", 3),
        ("vocab_size", 2.5),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", 1e308),
        ("rope_theta", -1.0),
        ("rope_theta", 1.0),
        ("rope_theta", float("nan")),
        ("tie_word_embeddings", "yes"),
        ("hidden_act", "relu6"),
        ("rope_scaling", {"rope_type": "spiral", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "linear"}),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 1e308}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 1e7}),
        ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.125}),
        ("rope_scaling", {**LONG_ROPE, "original_max_position_embeddings": 1}),
        ("rope_scaling", "linear"),
        ("architectures", "LlamaForCausalLM"),
    ],
    ids=str,
)
def test_impossible_value_is_a_load_error(key: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        make_spec(**{key: value})


def test_hidden_size_that_heads_do_not_divide_needs_a_head_dim() -> None:
    with pytest.raises(ModelLoadError, match="hidden_size is 63, not a multiple of num_attention_heads 4"):
        make_spec(hidden_size=63, head_dim=None)


def test_layer_types_must_match_the_layers() -> None:
    with pytest.raises(ModelLoadError, match="layer_types has 2 entries for 6 layers"):
        make_spec("gemma3_text", layer_types=["full_attention"] * 2)
    with pytest.raises(ModelLoadError, match="layer_types has 'linear_attention'"):
        make_spec("gemma3_text", layer_types=["linear_attention"] * 6)
