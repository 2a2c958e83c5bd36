"""What is Qwen 3.5's own: configs that leave things out, the order of its tensors' rows, parts that are not used.

That its logits are right is tested in test_decoder.py.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_gguf import write_tiny_gguf
from tiny_models import open_gguf_model, open_tiny, read_config, rename

from octavo.cache_spec import AttentionGroupSpec, StateGroupSpec
from octavo.errors import ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.formats.safetensors import SafetensorsTensor
from octavo.models.base import DecoderSpec, DeltaNetSpec
from octavo.models.decoder import build_program
from octavo.models.qwen3_5 import adapt_gguf, adapt_hf
from octavo.models.registry import spec_from_hf
from octavo.models.rope import RopeSpec
from octavo.weights.checkpoint import Checkpoint, checkpoint_from_safetensors

LINEAR, FULL = "linear_attention", "full_attention"


def make_config(*without: str, **changes: Any) -> dict[str, Any]:
    config = {key: value for key, value in read_config("qwen3_5_text").items() if key not in without}
    return {**config, **changes}


def make_spec(*without: str, **changes: Any) -> DecoderSpec:
    return spec_from_hf(make_config(*without, **changes), "config.json")


def mixers(spec: DecoderSpec) -> list[str]:
    return [layer.mixer for layer in spec.layers]


def test_sizes_are_those_of_the_file() -> None:
    spec = make_spec(linear_num_value_heads=6, linear_value_head_dim=40, linear_key_head_dim=24)
    assert spec.delta_net == DeltaNetSpec(2, 6, 24, 40, 4)
    assert spec.delta_net.conv_channels == 2 * 2 * 24 + 6 * 40
    assert (spec.attention_gate, spec.qk_norm, spec.tied_embeddings) == (True, "head", True)


def test_nested_and_flat_configs_give_the_same_spec() -> None:
    text = make_config("architectures", "tie_word_embeddings")
    nested = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": text,
        "tie_word_embeddings": True,
        "vision_config": {"depth": 1},
    }
    assert spec_from_hf(nested, "config.json") == make_spec()


def test_layers_without_a_list_follow_the_interval() -> None:
    assert mixers(make_spec("layer_types", num_hidden_layers=5)) == ["delta_net"] * 3 + ["attention", "delta_net"]
    spec = make_spec("layer_types", full_attention_interval=2)
    assert mixers(spec) == ["delta_net", "attention"] * 2


def test_layers_with_a_list_follow_it() -> None:
    assert mixers(make_spec(layer_types=[FULL, LINEAR, FULL, LINEAR])) == ["attention", "delta_net"] * 2


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}},
        {"rope_parameters": {"type": "default", "rope_theta": 1e7}, "partial_rotary_factor": 0.25},
        {"rope_theta": 1e7, "partial_rotary_factor": 0.25},
        {"rope_theta": 1e7},
    ],
    ids=["inside", "type", "4.x", "default_part"],
)
def test_every_dialect_of_rope_rotates_a_quarter_of_a_head(rope: dict[str, Any]) -> None:
    assert make_spec("rope_parameters", "partial_rotary_factor", **rope).layers[3].rope == RopeSpec(1e7, 8)


def test_unknown_keys_of_later_versions_are_ignored() -> None:
    assert make_spec(mtp_num_hidden_layers=1, mamba_ssm_dtype="float32", some_new_key=[1]) == make_spec()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_value_heads": 3}, "3, is not a multiple of 2 key heads"),
        ({"linear_key_head_dim": 1024}, "1024 key and 16 value dims, at most 512"),
        ({"linear_conv_kernel_dim": 1}, "convolution is 1 wide"),
        ({"linear_num_key_heads": 0}, "linear_num_key_heads is 0"),
        ({"layer_types": [LINEAR, "mamba", LINEAR, FULL]}, "layer_types has 'mamba', supported: linear_attention"),
        ({"layer_types": [FULL]}, "layer_types has 1 entries for 4 layers"),
        ({"layer_types": [LINEAR] * 4}, "none of the 4 layers has full attention"),
        ({"layer_types": None, "num_hidden_layers": 3}, "none of the 3 layers has full attention"),
    ],
)
def test_config_that_cannot_run_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        make_spec(**changes)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ModelLoadError, match="linear_num_value_heads is missing"):
        make_spec("linear_num_value_heads")


def test_recurrent_layers_share_the_last_cache_group() -> None:
    spec = make_spec("layer_types", num_hidden_layers=8)
    program = build_program(spec, max_model_len=64, block_size=32, cache_dtype="float16")
    attention, state = program.cache_groups
    assert isinstance(attention, AttentionGroupSpec)
    assert attention.num_layers == 2
    assert state == StateGroupSpec(6, 2, 4, 16, 16, conv_width=4, conv_channels=128, block_size=32)


def test_a_slot_of_the_small_model_takes_what_the_arithmetic_says() -> None:
    spec = make_spec(
        "layer_types",
        num_hidden_layers=24,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )
    program = build_program(spec, max_model_len=64, block_size=16, cache_dtype="float16", keeps_border=False)
    state = program.cache_groups[-1]
    assert isinstance(state, StateGroupSpec)
    mib = [4 * 18 * floats / 2**20 for floats in (state.state_floats, state.conv_floats, state.open_floats)]
    assert mib == pytest.approx([18.0, 1.27, 4.5], rel=0.01)
    assert state.block_bytes / 2**20 == pytest.approx(sum(mib))


def test_queries_come_before_gates() -> None:
    model = open_tiny("qwen3_5_text")
    tensor = model.checkpoint.tensors["layers.3.self_attn.q_proj.weight"]
    stored = tensor.data.view(np.float32).reshape(4, 2, 32, 64)  # heads, query and gate, dims
    values = tensor.values()
    assert np.array_equal(values[:128].reshape(4, 32, 64), stored[:, 0])
    assert np.array_equal(values[128:].reshape(4, 32, 64), stored[:, 1])


def test_without_an_output_gate_rows_stay_in_order() -> None:
    spec = make_spec(attn_output_gate=False)
    assert not spec.attention_gate
    tensor = SafetensorsTensor(
        "model.layers.3.self_attn.q_proj.weight", "F32", (128, 64), np.zeros(4 * 128 * 64, np.uint8)
    )
    checkpoint = adapt_hf(checkpoint_from_safetensors({tensor.name: tensor}, "here", norm_offset=1.0), spec)
    assert checkpoint.tensors["layers.3.self_attn.q_proj.weight"].row_order is None


def test_the_norm_inside_a_recurrent_layer_is_stored_plainly() -> None:
    tensors = open_tiny("qwen3_5_text").checkpoint.tensors
    inner, outer = tensors["layers.0.linear_attn.norm.weight"], tensors["layers.0.input_layernorm.weight"]
    assert np.array_equal(inner.values(), inner.data.view(np.float32))
    assert np.array_equal(outer.values(), outer.data.view(np.float32) + np.float32(1))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("self_attn.q_proj.weight", (128, 64), r"\(queries and their gates\) is \[128, 64\], .* 256 rows"),
        ("linear_attn.conv1d.weight", (127, 1, 4), r"is \[127, 1, 4\], the config makes it \[128, 1, 4\]"),
    ],
)
def test_tensor_of_another_shape_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    tensor = SafetensorsTensor(f"model.layers.3.{name}", "F32", shape, np.zeros(4 * int(np.prod(shape)), np.uint8))
    checkpoint = checkpoint_from_safetensors({tensor.name: tensor}, "here", norm_offset=1.0)
    with pytest.raises(ModelLoadError, match=f"here: layers.3.{name} {message}"):
        adapt_hf(checkpoint, make_spec())


def test_vision_and_draft_tensors_are_skipped_with_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="octavo"):
        model = open_tiny("qwen3_5_vlm")
    assert not [name for name in model.checkpoint.tensors if "visual" in name or "mtp" in name]
    assert [record.getMessage() for record in caplog.records] == [
        "qwen3_5_vlm: only text is supported; tensors of mtp, visual are not used"
    ]


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
def test_every_prefix_of_the_text_model_is_known(prefix: str) -> None:
    stored = SafetensorsTensor("A_log", "F32", (4,), np.zeros(16, np.uint8))
    tensor = rename(stored, f"{prefix}layers.0.linear_attn.A_log")
    checkpoint = checkpoint_from_safetensors({tensor.name: tensor}, "here", norm_offset=1.0)
    (decay,) = adapt_hf(checkpoint, make_spec()).tensors.items()
    assert decay[0] == "layers.0.linear_attn.decay"
    assert decay[1].values().tolist() == [-1.0] * 4


def test_a_gguf_has_its_value_heads_in_another_order_and_is_else_the_same_model(tmp_path: Path) -> None:
    spec = open_gguf_model(open_gguf(write_tiny_gguf(tmp_path / "model.gguf", "qwen3_5_text", "qwen35"))).spec
    expected = make_spec()
    assert spec.delta_net == DeltaNetSpec(2, 4, 16, 16, 4, tiled_heads=True)
    assert mixers(spec) == mixers(expected)
    assert (spec.layers[3], spec.attention_gate, spec.head_dim) == (expected.layers[3], True, 32)


def test_the_draft_model_in_a_gguf_is_left_out_with_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    tensor = open_tiny("qwen3_5_text").checkpoint.tensors["layers.0.input_layernorm.weight"]
    names = ["layers.3.input_layernorm.weight", "layers.4.input_layernorm.weight", "blk.4.nextn.eh_proj.weight", "norm"]
    with caplog.at_level(logging.WARNING, logger="octavo"):
        kept = adapt_gguf(Checkpoint("model.gguf", dict.fromkeys(names, tensor)), make_spec())
    assert list(kept.tensors) == ["layers.3.input_layernorm.weight", "norm"]
    assert caplog.messages == ["model.gguf: the draft model in blocks from 4 on is not used"]


GGUF_CHANGES = {
    "ssm.inner_size": (lambda w: w.add_ssm_inner_size(65), "ssm.inner_size' is not a multiple of the 4 heads"),
    "nextn_predict_layers": (
        lambda w: w.add_uint32("qwen35.nextn_predict_layers", 5),
        "nextn_predict_layers' leaves none of 5 blocks",
    ),
    "attention.recurrent_layers": (
        lambda w: w.add_array("qwen35.attention.recurrent_layers", [True, False]),
        "attention.recurrent_layers' must be a list of 4 booleans",
    ),
    "full_attention_interval": (
        lambda w: w.add_uint32("qwen35.full_attention_interval", 5),
        "none of the 4 layers has full attention",
    ),
}


@pytest.mark.parametrize("key", GGUF_CHANGES)
def test_gguf_metadata_that_cannot_be_right_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = GGUF_CHANGES[key]

    def finish(writer: gguf.GGUFWriter) -> None:
        for values in writer.kv_data:
            values.pop(f"qwen35.{key}", None)
        change(writer)
        write_header(writer)

    write_header = gguf.GGUFWriter.write_header_to_file
    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", finish)
    path = write_tiny_gguf(tmp_path / "model.gguf", "qwen3_5_text", "qwen35")
    with pytest.raises(ModelLoadError, match=message):
        open_gguf_model(open_gguf(path))
