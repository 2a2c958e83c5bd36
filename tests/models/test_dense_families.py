"""What the smaller families leave out of their files, or say in their own way; their checkpoints test the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny_gguf import write_tiny_gguf
from tiny_models import open_tiny, read_config

from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile, open_gguf
from octavo.formats.gguf_types import GgufType
from octavo.models.base import DecoderSpec
from octavo.models.fused import split_fused
from octavo.models.registry import spec_from_gguf, spec_from_hf
from octavo.models.rope import LongRopeScaling, RopeSpec, YarnScaling
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor


def make_spec(name: str, *without: str, **changes: Any) -> DecoderSpec:
    """Return the spec of a tiny checkpoint's config, without some keys and with others replaced."""
    config = {**read_config(name), **changes}
    for key in without:
        del config[key]
    return spec_from_hf(config, "config.json")


def make_gguf(path: Path, name: str, arch: str, **metadata: Any) -> GgufFile:
    """Return a tiny checkpoint as GGUF, with metadata replaced."""
    file = open_gguf(write_tiny_gguf(path / "model.gguf", name, arch))
    values = {f"{arch}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    return GgufFile(file.path, {**file.metadata, **values}, file.tensors)


def test_smollm3_has_every_fourth_layer_without_rope_unless_the_file_lists_them() -> None:
    rotates = [layer.rope is not None for layer in make_spec("smollm3", "no_rope_layers").layers]
    assert rotates == [True, True, True, False]
    listed = make_spec("smollm3", no_rope_layers=[0, 1, 1, 1])
    assert [layer.rope is not None for layer in listed.layers] == [False, True, True, True]


def test_smollm3_has_its_window_on_the_layers_without_rope() -> None:
    spec = make_spec("smollm3", "layer_types", use_sliding_window=True, sliding_window=9)
    assert [layer.window for layer in spec.layers] == [None, None, None, 9]


def test_too_few_rope_flags_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="no_rope_layers has 2 entries for 4 layers"):
        make_spec("smollm3", no_rope_layers=[1, 0])


def test_gemma_reads_gelu_as_its_tanh_form() -> None:
    for act in ("gelu", "gelu_pytorch_tanh"):
        assert make_spec("gemma", hidden_act=act).activation == "gelu_tanh"


def test_gemma2_without_layer_types_has_its_window_on_even_layers() -> None:
    assert [layer.window for layer in make_spec("gemma2", "layer_types").layers] == [8, None, 8, None]


def test_gemma2_has_the_caps_of_the_family_unless_they_are_null() -> None:
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    spec = make_spec("gemma2", *keys)
    assert (spec.attention_softcap, spec.final_softcap) == (50.0, 30.0)
    spec = make_spec("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (spec.attention_softcap, spec.final_softcap) == (None, None)


def test_gemma2_27b_of_a_gguf_file_scales_by_the_hidden_size_per_head(tmp_path: Path) -> None:
    file = make_gguf(tmp_path, "gemma2", "gemma2", block_count=46)
    assert spec_from_gguf(file).attention_scale == (60 / 5) ** -0.5


def test_olmo3_of_the_old_dialect_scales_only_the_rope_of_its_full_layers() -> None:
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
    spec = make_spec("olmo3", "rope_parameters", "layer_types", rope_theta=5e5, rope_scaling=scaling)
    assert [layer.window for layer in spec.layers] == [8, 8, 8, None]
    assert spec.layers[0].rope == RopeSpec(5e5, 20)
    rope = spec.layers[3].rope
    assert rope is not None
    assert isinstance(rope.scaling, YarnScaling)


def test_windows_of_a_gguf_file_may_be_a_list_or_a_period(tmp_path: Path) -> None:
    windows = {}
    for pattern in (2, np.array([False, True, True, False])):
        file = make_gguf(tmp_path, "olmo3", "olmo2", attention__sliding_window_pattern=pattern)
        windows[str(pattern)] = [layer.window for layer in spec_from_gguf(file).layers]
    assert list(windows.values()) == [[8, None, 8, None], [None, 8, 8, None]]


def test_window_list_of_a_gguf_file_must_cover_its_layers(tmp_path: Path) -> None:
    file = make_gguf(tmp_path, "olmo3", "olmo2", attention__sliding_window_pattern=np.array([True]))
    with pytest.raises(ModelLoadError, match="must be a number or a list of 4 booleans"):
        spec_from_gguf(file)


def test_phi3_calls_longrope_su_in_old_files() -> None:
    scaling = {**read_config("phi4_longrope")["rope_scaling"], "type": "su"}
    del scaling["rope_type"]
    assert make_spec("phi4_longrope", rope_scaling=scaling) == make_spec("phi4_longrope")


def test_longrope_of_a_gguf_file_is_that_of_the_config(tmp_path: Path) -> None:
    from_gguf = spec_from_gguf(make_gguf(tmp_path, "phi4_longrope", "phi3")).layers[0].rope
    from_config = make_spec("phi4_longrope").layers[0].rope
    assert from_gguf is not None
    assert from_config is not None
    assert isinstance(from_gguf.scaling, LongRopeScaling)
    assert isinstance(from_config.scaling, LongRopeScaling)
    assert from_gguf.rotary_dim == from_config.rotary_dim
    assert from_gguf.scaling.long_factors == pytest.approx(from_config.scaling.long_factors)
    assert from_gguf.scaling.attention_factor == pytest.approx(from_config.scaling.attention_factor)


def test_half_of_the_longrope_tensors_is_refused(tmp_path: Path) -> None:
    file = make_gguf(tmp_path, "phi4_longrope", "phi3")
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != "rope_factors_short.weight"}
    with pytest.raises(ModelLoadError, match=r"rope_factors_short\.weight' is missing"):
        spec_from_gguf(GgufFile(file.path, file.metadata, tensors))


def test_fused_tensor_with_other_rows_is_refused() -> None:
    model = open_tiny("phi3")
    name = "layers.0.self_attn.qkv_proj.weight"
    tensor = replace(model.checkpoint.tensors["layers.0.self_attn.o_proj.weight"], shape=(100, 100))
    with pytest.raises(
        ModelLoadError, match=r"layers.0.self_attn.qkv_proj.weight is \[100, 100\], .* 100 \+ 100 \+ 100"
    ):
        split_fused(Checkpoint("here", {name: tensor}), model.spec)


def test_a_fused_tensor_that_is_made_on_demand_is_made_once_for_all_its_parts() -> None:
    model = open_tiny("phi3")
    name = "layers.0.self_attn.qkv_proj.weight"
    q_size, kv_size = (heads * model.spec.head_dim for heads in (model.spec.num_heads, model.spec.num_kv_heads))
    rows = q_size + 2 * kv_size
    stored = np.arange(rows * 32, dtype=np.float32).reshape(rows, 32)
    made = 0

    def make() -> npt.NDArray[np.uint8]:
        nonlocal made
        made += 1
        return stored.copy().reshape(-1).view(np.uint8)

    fused = CheckpointTensor(GgufType.F32, stored.shape, make)
    tensors = split_fused(Checkpoint("here", {name: fused}), model.spec).tensors
    assert made == 0
    parts = [tensors[f"layers.0.self_attn.{role}_proj.weight"] for role in "qkv"]
    assert np.array_equal(np.concatenate([part.data.view(np.float32).reshape(-1, 32) for part in parts]), stored)
    assert made == 1
    parts[2].values()
    assert made == 2  # nothing was kept


def test_a_fused_vector_in_blocks_is_refused() -> None:
    model = open_tiny("phi3")
    rows = (model.spec.num_heads + 2 * model.spec.num_kv_heads) * model.spec.head_dim
    fused = CheckpointTensor(GgufType.Q8_0, (rows,), np.zeros(rows // 32 * 34, np.uint8))
    with pytest.raises(ModelLoadError, match=r"qkv_proj.bias is .* Q8_0: .* rows of whole bytes"):
        split_fused(Checkpoint("here", {"layers.0.self_attn.qkv_proj.bias": fused}), model.spec)


def test_dynamic_scaling_extends_the_context() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    assert make_spec("llama", rope_scaling=scaling).max_positions == 2 * make_spec("llama").max_positions
