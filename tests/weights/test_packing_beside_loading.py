"""Row orders, and loading: which bytes are packed with which arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from tiny_models import TINY_DIR, open_tiny

from octavo.errors import ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.formats.gguf_quants import dequantize_bytes
from octavo.formats.gguf_types import GgufType
from octavo.formats.safetensors import SafetensorsTensor, open_safetensors_dir
from octavo.models.decoder import build_program
from octavo.program.ops import Program
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor, checkpoint_from_gguf, checkpoint_from_safetensors
from octavo.weights.oracle import reference_weights
from octavo.weights.packing import NATIVE_FORMATS, half_split_row_order
from octavo.weights.store import load_weights


@dataclass(frozen=True)
class FakeMatrix:
    """What `pack` was given."""

    weight_format: int
    sources: Sequence[npt.NDArray[np.uint8]]
    shape: tuple[int, int]
    row_order: npt.NDArray[np.int32] | None

    @property
    def nbytes(self) -> int:
        return sum(source.nbytes for source in self.sources)


def fake_pack(
    weight_format: int,
    sources: Sequence[npt.NDArray[np.uint8]],
    N: int,
    K: int,
    row_order: npt.NDArray[np.int32] | None,
) -> FakeMatrix:
    return FakeMatrix(weight_format, sources, (N, K), row_order)


def make_program(name: str) -> Program:
    return build_program(open_tiny(name).spec, max_model_len=64, block_size=16, cache_dtype="float16")


def make_checkpoint(name: str, **changes: CheckpointTensor | None) -> Checkpoint:
    """Return a tiny checkpoint with tensors replaced, or removed if None."""
    tensors = {**open_tiny(name).checkpoint.tensors, **changes}
    return Checkpoint(name, {key: tensor for key, tensor in tensors.items() if tensor is not None})


def make_tensor(shape: tuple[int, ...]) -> CheckpointTensor:
    return CheckpointTensor(GgufType.F32, shape, np.zeros(4 * int(np.prod(shape)), dtype=np.uint8))


def test_row_order_undoes_the_interleaving_of_each_head() -> None:
    interleaved = [0, 4, 1, 5, 2, 6, 3, 7]  # dims of a head of 8 as the file has them
    rows = np.array([10 * head + dim for head in range(3) for dim in interleaved])
    assert rows[half_split_row_order(24, 3, "q")].tolist() == [10 * h + d for h in range(3) for d in range(8)]


@pytest.mark.parametrize("num_rows", [23, 15])
def test_rows_that_are_not_whole_heads_are_refused(num_rows: int) -> None:
    with pytest.raises(ModelLoadError, match=f"tensor q has {num_rows} rows"):
        half_split_row_order(num_rows, 3, "tensor q")


def test_every_readable_type_has_a_native_format() -> None:
    assert set(NATIVE_FORMATS) == set(GgufType)
    assert sorted(NATIVE_FORMATS.values()) == list(range(len(GgufType)))


def test_rows_of_a_quantized_tensor_are_reordered_as_they_are() -> None:
    rows = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    order = half_split_row_order(64, 4, "q")
    stored = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    tensor = CheckpointTensor(GgufType.Q8_0, rows.shape, stored.reshape(-1), row_order=order)
    expected = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0)[order]
    assert tensor.values().tobytes() == expected.tobytes()


def test_parts_of_one_format_are_packed_as_one_matrix() -> None:
    store = load_weights(make_program("llama"), make_checkpoint("llama"), pack=fake_pack)
    (segment,) = store.matrices["layers.0.self_attn.qkv_proj.weight"]
    file = open_safetensors_dir(TINY_DIR / "llama")
    for source, role in zip(segment.sources, "qkv", strict=True):
        assert np.array_equal(source, file[f"model.layers.0.self_attn.{role}_proj.weight"].data)
    assert (segment.weight_format, segment.shape, segment.row_order) == (0, (128, 64), None)


def test_parts_of_different_formats_are_segments_in_order() -> None:
    name = "layers.0.self_attn.v_proj.weight"
    half = CheckpointTensor(GgufType.F16, (32, 64), np.zeros(2 * 32 * 64, dtype=np.uint8))
    checkpoint = make_checkpoint("llama", **{name: half})
    store = load_weights(make_program("llama"), checkpoint, pack=fake_pack)
    segments = store.matrices["layers.0.self_attn.qkv_proj.weight"]
    assert [(segment.weight_format, segment.shape) for segment in segments] == [(0, (96, 64)), (1, (32, 64))]


def test_row_orders_of_parts_are_stacked() -> None:
    tensors = make_checkpoint("llama").tensors
    order = half_split_row_order(32, 2, "k")
    name = "layers.0.self_attn.k_proj.weight"
    checkpoint = make_checkpoint("llama", **{name: replace(tensors[name], row_order=order)})
    store = load_weights(make_program("llama"), checkpoint, pack=fake_pack)
    (segment,) = store.matrices["layers.0.self_attn.qkv_proj.weight"]
    expected = [*range(64), *(64 + order), *range(96, 128)]
    assert segment.row_order is not None
    assert (segment.row_order.dtype, segment.row_order.tolist()) == (np.int32, expected)


def test_tied_embedding_is_packed_once() -> None:
    store = load_weights(make_program("llama"), make_checkpoint("llama"), pack=fake_pack)
    assert "embed_tokens.weight" in store.matrices
    assert "lm_head.weight" not in store.matrices


def test_vectors_are_float32_and_biases_are_stacked_like_their_matrix() -> None:
    checkpoint = make_checkpoint("llama3_rope")
    store = load_weights(make_program("llama3_rope"), checkpoint, pack=fake_pack)
    bias = store.vectors["layers.1.self_attn.qkv_proj.bias"]
    parts = [checkpoint.tensors[f"layers.1.self_attn.{role}_proj.bias"].values() for role in "qkv"]
    assert bias.dtype == np.float32
    assert bias.tolist() == np.concatenate(parts).tolist()


def test_size_is_the_sum_of_all_weights() -> None:
    store = load_weights(make_program("llama"), make_checkpoint("llama"), pack=fake_pack)
    sizes = store.bytes_by_name()
    assert sum(sizes.values()) == sum(
        tensor.data.nbytes for tensor in open_safetensors_dir(TINY_DIR / "llama").values()
    )


def test_norms_stored_as_w_minus_one_get_the_one_back() -> None:
    store = load_weights(make_program("gemma3_text"), make_checkpoint("gemma3_text"), pack=fake_pack)
    stored = open_safetensors_dir(TINY_DIR / "gemma3_text")
    for name in ("norm.weight", "layers.2.self_attn.q_norm.weight", "layers.2.post_feedforward_layernorm.weight"):
        expected = stored[f"model.{name}"].data.view(np.float32) + np.float32(1)
        assert store.vectors[name].tolist() == expected.tolist()


@pytest.mark.parametrize(("dtype", "kind"), [("F16", GgufType.F16), ("BF16", GgufType.BF16)])
def test_half_precision_checkpoints_keep_their_bits(dtype: str, kind: GgufType) -> None:
    data = np.arange(64, dtype=np.uint16).view(np.uint8)
    tensors = {"norm.weight": SafetensorsTensor("model.norm.weight", dtype, (64,), data)}
    tensor = checkpoint_from_safetensors(tensors, "model", norm_offset=0.0).tensors["norm.weight"]
    assert tensor.type is kind
    assert tensor.values().tolist() == dequantize_bytes(data, kind).tolist()


def test_dtype_that_is_no_float_is_refused() -> None:
    tensors = {"x": SafetensorsTensor("model.norm.weight", "I8", (64,), np.zeros(64, dtype=np.uint8))}
    with pytest.raises(ModelLoadError, match=r"model: tensor model.norm.weight is I8, supported: F32, F16, BF16"):
        checkpoint_from_safetensors(tensors, "model", norm_offset=0.0)


def test_tensor_under_two_names_is_refused() -> None:
    names = ["model.norm.weight", "language_model.model.norm.weight"]
    tensors = {name: SafetensorsTensor(name, "F32", (1,), np.zeros(4, dtype=np.uint8)) for name in names}
    with pytest.raises(ModelLoadError, match=r"norm.weight is there under two names"):
        checkpoint_from_safetensors(tensors, "model", norm_offset=0.0)


def test_tensor_of_a_gguf_under_two_names_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for role in ("ffn_norm", "post_attention_norm"):
        writer.add_tensor(f"blk.0.{role}.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(tmp_path / "model.gguf")
    with pytest.raises(ModelLoadError, match=r"layers\.0\.post_attention_layernorm\.weight is there under two names"):
        checkpoint_from_gguf(file, sandwich=False, permuted_heads=None)


@pytest.mark.parametrize("shape", [(2047, 64), (2048, 63), (2048,)], ids=str)
def test_shape_that_the_config_does_not_describe_is_refused(shape: tuple[int, ...]) -> None:
    checkpoint = make_checkpoint("llama", **{"embed_tokens.weight": make_tensor(shape)})
    with pytest.raises(ModelLoadError, match=r"llama: tensor embed_tokens.weight is \[.*\], .* \[2048, 64\]"):
        load_weights(make_program("llama"), checkpoint, pack=fake_pack)


def test_missing_and_unexpected_tensors_are_refused() -> None:
    bias = {"layers.0.self_attn.q_proj.bias": make_tensor((64,)), "norm.weight": None}
    checkpoint = make_checkpoint("llama", **bias)
    with pytest.raises(ModelLoadError, match=r"missing \(norm.weight\).*unexpected \(layers.0.self_attn.q_proj.bias\)"):
        load_weights(make_program("llama"), checkpoint, pack=fake_pack)


def test_oracle_knows_which_products_take_quantized_activations() -> None:
    rows = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    quantized = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0).reshape(-1)
    name = "layers.1.self_attn.q_proj.weight"
    checkpoint = make_checkpoint("llama", **{name: CheckpointTensor(GgufType.Q8_0, (64, 64), quantized)})
    weights = reference_weights(make_program("llama"), checkpoint)
    assert weights.quantized == {name}
