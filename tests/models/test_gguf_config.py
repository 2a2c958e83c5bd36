"""GGUF metadata as a spec: what the format leaves out, and what is refused.

That it equals the spec of a config.json is tested in test_decoder.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile, open_gguf
from octavo.models.registry import spec_from_gguf
from octavo.models.rope import LinearScaling, RopeSpec, YarnScaling

Adapt = Callable[[gguf.GGUFWriter], None]


def make_file(
    path: Path, arch: str = "llama", *, num_layers: int = 2, adapt: Adapt | None = None, skip: str = ""
) -> GgufFile:
    """Write the metadata of a small model, an embedding, and as many dummy tensors as layers."""
    writer = gguf.GGUFWriter(path / "model.gguf", arch)
    metadata: dict[str, int | float] = {
        "context_length": 1024,
        "embedding_length": 64,
        "block_count": num_layers,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    for key, value in metadata.items():
        if key != skip:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"{arch}.{key}", value)
    if adapt is not None:
        adapt(writer)
    if skip != "token_embd.weight":
        writer.add_tensor("token_embd.weight", np.zeros((100, 64), dtype=np.float32))
    for index in range(num_layers):
        writer.add_tensor(f"blk.{index}.attn_norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_gguf(path / "model.gguf")


def test_sizes_and_defaults_of_a_plain_file(tmp_path: Path) -> None:
    spec = spec_from_gguf(make_file(tmp_path))
    sizes = (spec.vocab_size, spec.hidden_size, spec.ffn_size, spec.num_heads, spec.num_kv_heads, spec.head_dim)
    assert sizes == (100, 64, 96, 4, 2, 16)
    assert (spec.eps, spec.max_positions, spec.tied_embeddings) == (1e-5, 1024, True)
    assert [(layer.window, layer.rope) for layer in spec.layers] == [(None, RopeSpec(10_000.0, 16))] * 2


def test_separate_head_and_biases_show_in_the_tensors(tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        for name in ("output.weight", "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_gate.bias"):
            writer.add_tensor(name, np.zeros(64, dtype=np.float32))

    spec = spec_from_gguf(make_file(tmp_path, adapt=adapt))
    assert not spec.tied_embeddings
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias) == (True, True, True)


def test_gemma_gets_what_the_format_leaves_out(tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(512)
        writer.add_rope_freq_base(1e6)

    spec = spec_from_gguf(make_file(tmp_path, "gemma3", num_layers=7, adapt=adapt))
    assert [layer.window for layer in spec.layers] == [512] * 5 + [None, 512]
    assert (spec.layers[0].rope, spec.layers[5].rope) == (RopeSpec(10_000.0, 16), RopeSpec(1e6, 16))
    assert (spec.block, spec.activation, spec.qk_norm, spec.embed_scale) == ("sandwich", "gelu_tanh", "head", 8.0)
    assert spec.attention_scale == 16**-0.5


def test_gemma_27b_scales_by_its_hidden_size_over_the_heads(tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(1024)
        writer.add_key_length(32)
        writer.add_value_length(32)

    spec = spec_from_gguf(make_file(tmp_path, "gemma3", num_layers=62, adapt=adapt))
    assert (spec.head_dim, spec.attention_scale) == (32, 16**-0.5)


def test_rope_scaling_is_read_from_the_metadata(tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(256)

    scaling = spec_from_gguf(make_file(tmp_path, adapt=adapt)).layers[0].rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.factor, scaling.original_max_positions) == (4.0, 256)


def test_linear_scaling_of_an_old_file_has_no_type(tmp_path: Path) -> None:
    spec = spec_from_gguf(make_file(tmp_path, adapt=lambda writer: writer.add_float32("llama.rope.scale_linear", 2.0)))
    assert spec.layers[0].rope.scaling == LinearScaling(2.0)


def test_unknown_architecture_is_refused_with_what_is_supported(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"model.gguf: architecture 'mamba' .* supported in GGUF: gemma, .*llama"):
        spec_from_gguf(make_file(tmp_path, "mamba"))


@pytest.mark.parametrize(
    "key",
    [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "token_embd.weight",
    ],
)
def test_missing_key_is_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=rf"model.gguf.*{key}.* is missing"):
        spec_from_gguf(make_file(tmp_path, skip=key))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count_kv", 3),
        ("attention.value_length", 8),
        ("rope.dimension_count", 17),
        ("rope.dimension_count", 18),
        ("attention.key_length", 2**31),
        ("attention.key_length", 8),
        ("attention.key_length", 520),
    ],
    ids=str,
)
def test_impossible_value_is_a_load_error(key: str, value: int, tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32(f"llama.{key}", value)

    with pytest.raises(ModelLoadError, match=r"model.gguf"):
        spec_from_gguf(make_file(tmp_path, adapt=adapt, skip=key))


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e-13, 1e13, 1e300, float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"])
def test_a_number_beyond_all_sense_is_a_load_error(key: str, value: float, tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_float64(f"llama.{key}", value)

    with pytest.raises(
        ModelLoadError, match=rf"model.gguf.*{key}.* is {re.escape(str(value))}, expected a number from 1e-12 to 1e\+12"
    ):
        spec_from_gguf(make_file(tmp_path, adapt=adapt, skip=key))


@pytest.mark.parametrize(("key", "smallest"), [("attention.head_count", 1), ("expert_count", 0)])
def test_a_size_out_of_range_is_refused_with_what_is_allowed(key: str, smallest: int, tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_int32(f"llama.{key}", -1)

    with pytest.raises(ModelLoadError, match=rf"{key}.* is -1, expected an integer from {smallest} to"):
        spec_from_gguf(make_file(tmp_path, adapt=adapt, skip=key))


def test_experts_on_every_layer_need_no_width_of_dense_ones(tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(8)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(48)

    spec = spec_from_gguf(make_file(tmp_path, "qwen3moe", adapt=adapt, skip="feed_forward_length"))
    assert spec.moe is not None
    assert (spec.ffn_size, spec.moe.ffn_size) == (48, 48)


def test_a_rope_base_that_gives_no_angles_is_a_load_error(tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_freq_base(1.0)

    with pytest.raises(ModelLoadError, match=r"freq_base.* must be above 1"):
        spec_from_gguf(make_file(tmp_path, adapt=adapt, skip="rope.freq_base"))


def test_more_layers_than_tensors_are_refused(tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("llama.block_count", 100_000_000)

    with pytest.raises(ModelLoadError, match=r"block_count.* only 3 tensors"):
        spec_from_gguf(make_file(tmp_path, adapt=adapt, skip="block_count"))


def test_rope_divisors_of_the_wrong_length_are_refused(tmp_path: Path) -> None:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.ones(5, dtype=np.float32))

    with pytest.raises(ModelLoadError, match=r"rope_freqs.weight"):
        spec_from_gguf(make_file(tmp_path, adapt=adapt))
