"""Which tensors are rounded, what is refused, and what the next start finds in the cache."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import TINY_DIR, read_config

from octavo.errors import ConfigError, ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.formats.gguf_quants import dequantize
from octavo.formats.gguf_types import GgufType
from octavo.formats.safetensors import open_safetensors_dir
from octavo.models.decoder import build_program
from octavo.models.registry import spec_from_hf
from octavo.native import kernels
from octavo.weights import quantized_cache
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor, checkpoint_from_safetensors
from octavo.weights.packing import NATIVE_FORMATS
from octavo.weights.quantization import quantized_checkpoint
from octavo.weights.quantized_cache import QuantizedCache
from octavo.weights.quantizer import WeightQuantizer
from octavo.weights.store import WeightStore, load_weights

TYPES = {"q8": GgufType.Q8_0, "q4": GgufType.Q4_1}


def make_tensor(*shape: int) -> CheckpointTensor:
    return CheckpointTensor(GgufType.F32, shape, np.zeros(4 * int(np.prod(shape)), dtype=np.uint8))


def rounded_types(names: Mapping[str, CheckpointTensor], quantization: Any) -> dict[str, GgufType | None]:
    tensors = quantized_checkpoint(Checkpoint("model", names), quantization).tensors
    return {name: tensor.rounded_type for name, tensor in tensors.items()}


@pytest.mark.parametrize("quantization", TYPES)
def test_matrices_are_rounded_and_the_vocabulary_to_eight_bits(quantization: str) -> None:
    matrices = [
        "layers.0.mlp.gate_proj.weight",
        "layers.0.self_attn.q_proj.weight",
        "layers.0.mlp.experts.3.up_proj.weight",
    ]
    vocabulary = ["embed_tokens.weight", "lm_head.weight"]
    types = rounded_types(dict.fromkeys([*matrices, *vocabulary], make_tensor(32, 32)), quantization)
    assert types == {**dict.fromkeys(matrices, TYPES[quantization]), **dict.fromkeys(vocabulary, GgufType.Q8_0)}


def test_what_is_small_stays_as_it_is() -> None:
    vectors = {"norm.weight": make_tensor(32), "layers.0.self_attn.q_proj.bias": make_tensor(32)}
    names = [
        "mlp.gate",
        "block_sparse_moe.gate",
        "mlp.shared_expert_gate",
        "linear_attn.conv1d",
        "linear_attn.in_proj_a",
    ]
    small = {f"layers.0.{name}.weight": make_tensor(4, 32) for name in names}
    assert set(rounded_types({**vectors, **small}, "q4").values()) == {None}


def test_a_file_that_is_quantised_is_refused_with_its_format() -> None:
    tensors = {
        "embed_tokens.weight": replace(make_tensor(32, 32), type=GgufType.Q8_0),
        "layers.0.mlp.up_proj.weight": replace(make_tensor(32, 32), type=GgufType.Q4_K),
    }
    with pytest.raises(ConfigError, match=r"'q8' rounds float .* of model.gguf are quantised already \(Q4_K, Q8_0\)"):
        quantized_checkpoint(Checkpoint("model.gguf", tensors), "q8")


def make_checkpoint(directory: Path) -> Checkpoint:
    return checkpoint_from_safetensors(open_safetensors_dir(directory), str(directory), norm_offset=0.0)


def load(checkpoint: Checkpoint, cache: QuantizedCache | None = None, native: Any = None) -> WeightStore:
    program = build_program(
        spec_from_hf(read_config("llama"), "llama"), max_model_len=64, block_size=16, cache_dtype="float16"
    )
    native = native or kernels().PackedMatrix
    quantize = WeightQuantizer(native, num_threads=2, cache=cache)
    store = load_weights(program, checkpoint, pack=kernels().PackedMatrix.pack, quantize=quantize)
    quantize.keep()
    return store


class NoQuantizer:
    """Restores, and fails the test that rounds."""

    restore = kernels().PackedMatrix.restore

    @staticmethod
    def quantize(*_: Any) -> Any:
        pytest.fail("the weights are in the cache")


def contents(store: WeightStore) -> dict[str, list[bytes]]:
    return {name: [segment.data.tobytes() for segment in segments] for name, segments in store.matrices.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of a tiny checkpoint that a test may change."""
    return shutil.copytree(TINY_DIR / "llama", tmp_path / "llama")


def make_cache(model: Path, quantization: Any = "q4", packing_version: int = 1) -> tuple[Checkpoint, QuantizedCache]:
    checkpoint = make_checkpoint(model)
    cache = QuantizedCache(checkpoint, quantization, packing_version)
    return quantized_checkpoint(checkpoint, quantization), cache


def test_matrices_are_those_of_their_tensors(model: Path) -> None:
    checkpoint = quantized_checkpoint(make_checkpoint(model), "q4")
    store = load(checkpoint)
    (segment,) = store.matrices["layers.0.mlp.gate_up_proj.weight"]
    parts = [checkpoint.tensors[f"layers.0.mlp.{part}_proj.weight"].values() for part in ("gate", "up")]
    rows = segment.dequantize_rows(np.arange(segment.N, dtype=np.int32))  # type: ignore[attr-defined]
    assert rows.tobytes() == np.concatenate(parts).tobytes()
    assert list(store.format_bytes) == ["Q8_0", "Q4_1"]
    vector_bytes = sum(vector.nbytes for vector in store.vectors.values())
    assert sum(store.format_bytes.values()) + vector_bytes == sum(store.bytes_by_name().values())


@pytest.mark.parametrize("name", ["blk.0.ffn_down.weight", "blk.29.attn_v.weight", "token_embd.weight"])
def test_a_dequantised_file_gets_its_own_bits_back(smollm2_path: Path, name: str) -> None:
    tensor = open_gguf(smollm2_path).tensors[name]
    values = dequantize(tensor)[:1024]
    rows = [values.view(np.uint8)]
    matrix = kernels().PackedMatrix.quantize(NATIVE_FORMATS[tensor.type], 0, rows, *values.shape)
    assert matrix.dequantize_rows(np.arange(len(values), dtype=np.int32)).tobytes() == values.tobytes()


def test_a_value_that_cannot_be_rounded_names_its_tensor(model: Path) -> None:
    checkpoint = quantized_checkpoint(make_checkpoint(model), "q8")
    name = "layers.1.mlp.up_proj.weight"
    values = checkpoint.tensors[name].data.view(np.float32).copy()
    values[64 * 5 + 7] = np.nan
    broken = replace(checkpoint.tensors[name], source=values.view(np.uint8))
    with pytest.raises(ModelLoadError, match=rf"tensor {name}: element \[5, 7\] is nan, which cannot be quantised"):
        load(replace(checkpoint, tensors={**checkpoint.tensors, name: broken}))


@pytest.mark.usefixtures("own_cache")
def test_the_next_start_reads_what_the_last_one_kept(model: Path) -> None:
    first = load(*make_cache(model))
    checkpoint, cache = make_cache(model)
    assert contents(load(checkpoint, cache, NoQuantizer)) == contents(first)


@pytest.mark.usefixtures("own_cache")
def test_without_a_cache_nothing_is_written(own_cache: Path, model: Path) -> None:
    load(quantized_checkpoint(make_checkpoint(model), "q4"))
    assert not own_cache.exists()


def entries() -> list[Path]:
    return sorted(quantized_cache.cache_directory().iterdir())


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("damage", ["cut short", "emptied", "one bit", "checksums", "no safetensors", "another model"])
def test_a_damaged_or_foreign_entry_is_made_anew(model: Path, damage: str) -> None:
    first = load(*make_cache(model))
    (entry,) = entries()
    data = bytearray(entry.read_bytes())
    match damage:
        case "cut short":
            del data[len(data) // 2 :]
        case "emptied":
            data.clear()
        case "one bit":
            data[len(data) // 2] ^= 4
        case "checksums":
            data[-1] ^= 4
        case "no safetensors":
            data[:] = b"x" * len(data)
        case "another model":
            data[:] = (TINY_DIR / "llama" / "model.safetensors").read_bytes()
    entry.write_bytes(data)
    assert contents(load(*make_cache(model))) == contents(first)
    assert entries() == [entry]
    checkpoint, cache = make_cache(model)
    assert contents(load(checkpoint, cache, NoQuantizer)) == contents(first)


def touch(path: Path) -> None:
    info = path.stat()
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))


@pytest.mark.usefixtures("own_cache")
def test_a_changed_source_is_rounded_again_in_place_of_the_old_entry(model: Path) -> None:
    load(*make_cache(model))
    (old,) = entries()
    touch(model / "model.safetensors")
    load(*make_cache(model))
    (new,) = entries()
    assert new != old


@pytest.mark.usefixtures("own_cache")
def test_another_packing_or_method_has_its_own_entry(model: Path) -> None:
    paths = {make_cache(model, quantization, version)[1].path for quantization in ("q4", "q8") for version in (1, 2)}
    assert len(paths) == 4


@pytest.mark.usefixtures("own_cache")
def test_a_copy_of_a_model_elsewhere_leaves_the_first_ones_entry_alone(model: Path) -> None:
    load(*make_cache(model))
    load(*make_cache(shutil.copytree(model, model.with_name("copy"))))
    assert len(entries()) == 2


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("age", "stays"), [(0, True), (7200, False)])
def test_what_another_process_writes_stays_unless_it_was_abandoned(model: Path, age: int, stays: bool) -> None:
    checkpoint, cache = make_cache(model)
    content = cache.path.name.rsplit("-", 1)[1]
    other = cache.path.with_name(cache.path.name.replace(content, "new-other"))
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(b"half")
    os.utime(other, (time.time() - age,) * 2)
    load(checkpoint, cache)
    assert cache.path.exists()
    assert other.exists() is stays


@pytest.mark.usefixtures("own_cache")
def test_a_temporary_file_that_vanished_is_a_warning(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def vanish(source: str, target: Path) -> None:
        os.unlink(source)
        raise FileNotFoundError(f"nothing to rename to {target.name}")

    monkeypatch.setattr(quantized_cache.os, "replace", vanish)
    checkpoint, cache = make_cache(model)
    load(checkpoint, cache)
    assert "not kept: nothing to rename" in caplog.text


def test_a_cache_that_cannot_be_written_is_a_warning(
    own_cache: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_cache.write_text("a file, not a directory")
    load(*make_cache(model))
    assert "the quantised weights were not kept" in caplog.text


@pytest.mark.usefixtures("own_cache")
def test_a_disk_without_room_is_a_warning(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quantized_cache, "_SPARE_BYTES", 1 << 62)
    load(*make_cache(model))
    assert "were not kept" in caplog.text
    assert entries() == []
