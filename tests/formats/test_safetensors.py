"""safetensors files: what is read equals what the reference library wrote; a malformed file's error says where."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from model_files import make_safetensors

from octavo.errors import ModelLoadError
from octavo.formats.safetensors import INDEX_NAME, open_safetensors, open_safetensors_dir


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write(tmp_path: Path, data: bytes, name: str = "model.safetensors") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_tensors_are_those_the_reference_library_wrote(tmp_path: Path) -> None:
    arrays = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.arange(3, dtype=np.float16),
        "ids": np.arange(4, dtype=np.int64),
        "scalar": np.array(2.5, dtype=np.float32),
        "none": np.zeros((0, 4), dtype=np.float32),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tensors = open_safetensors_dir(tmp_path)
    assert {name: (t.shape, t.data.tobytes()) for name, t in tensors.items()} == {
        name: (array.shape, array.tobytes()) for name, array in arrays.items()
    }
    assert {name: t.dtype for name, t in tensors.items()} == {
        "matrix": "F32",
        "half": "F16",
        "ids": "I64",
        "scalar": "F32",
        "none": "F32",
    }


def test_bfloat16_is_read_as_its_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, make_safetensors({"w": entry("BF16", [2, 1], [0, 4])}, b"\x80\x3f\x00\xc0"))
    tensor = open_safetensors(path)["w"]
    assert (tensor.dtype, tensor.shape, tensor.data.tobytes()) == ("BF16", (2, 1), b"\x80\x3f\x00\xc0")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"\1\0\0", "header length", id="shorter-than-length"),
        pytest.param(struct.pack("<Q", 1 << 63) + b"{}", "header length", id="header-2^63"),
        pytest.param(struct.pack("<Q", 101 << 20) + b"{}", "header length", id="header-101-MB"),
        pytest.param(struct.pack("<Q", 100) + b"{}", "header", id="header-beyond-end"),
        pytest.param(make_safetensors(b"{"), "not valid JSON", id="not-json"),
        pytest.param(make_safetensors(b"\xff{}"), "not valid JSON", id="not-utf8"),
        pytest.param(make_safetensors(b"[1]"), "expected an object", id="json-list"),
        pytest.param(make_safetensors(b"[" * 200_000), "nested too deeply", id="deeply-nested"),
        pytest.param(make_safetensors(b'{"a":NaN}'), "NaN", id="nan"),
        pytest.param(make_safetensors(b'{"a":{},"a":{}}'), "'a' appears twice", id="key-twice"),
        pytest.param(make_safetensors({"w": 5}), "'w'", id="entry-not-object"),
        pytest.param(make_safetensors({"w": entry("F8_E4M3")}, bytes(8)), "'w' dtype", id="unsupported-dtype"),
        pytest.param(make_safetensors({"w": entry(shape="2")}, bytes(8)), "'w' shape", id="shape-not-list"),
        pytest.param(make_safetensors({"w": entry(shape=[-2])}, bytes(8)), "'w' shape", id="negative-extent"),
        pytest.param(make_safetensors({"w": entry(shape=[2.0])}, bytes(8)), "'w' shape", id="fractional-extent"),
        pytest.param(make_safetensors({"w": entry(shape=[True, 2])}, bytes(8)), "'w' shape", id="boolean-extent"),
        pytest.param(make_safetensors({"w": entry(shape=[1] * 99)}, bytes(8)), "'w' shape", id="99-dimensions"),
        pytest.param(make_safetensors({"w": entry(shape=[2**62, 4])}, bytes(8)), "'w': dtype F32", id="bytes-wrap"),
        pytest.param(make_safetensors({"w": entry(shape=[3])}, bytes(8)), "take 12 bytes", id="dtype-shape-mismatch"),
        pytest.param(make_safetensors({"w": entry(offsets=[0])}, bytes(8)), "data_offsets", id="one-offset"),
        pytest.param(make_safetensors({"w": entry(offsets=[8, 0])}, bytes(8)), "span -8", id="offsets-reversed"),
        pytest.param(make_safetensors({"w": entry()}, bytes(7)), "ends at 8", id="data-truncated"),
        pytest.param(make_safetensors({"w": entry()}, bytes(9)), "data section", id="data-left-over"),
        pytest.param(make_safetensors({"w": entry(offsets=[8, 16])}, bytes(16)), "gap", id="gap"),
        pytest.param(
            make_safetensors({"v": entry(), "w": entry(offsets=[4, 12])}, bytes(12)), "overlaps", id="overlap"
        ),
    ],
)
def test_malformed_file_is_named_with_its_field(tmp_path: Path, data: bytes, field: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(ModelLoadError) as error:
        open_safetensors(path)
    assert str(path) in str(error.value)
    assert field in str(error.value)


def make_shards(tmp_path: Path, weight_map: object) -> Path:
    write(tmp_path, make_safetensors({"a": entry()}, bytes(8)), "model.safetensors-00001-of-00002.safetensors")
    write(tmp_path, make_safetensors({"b": entry()}, bytes(8)), "other.safetensors")
    (tmp_path / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def test_shards_are_found_through_the_index_whatever_their_names(tmp_path: Path) -> None:
    names = {"b": "other.safetensors", "a": "model.safetensors-00001-of-00002.safetensors"}
    assert list(open_safetensors_dir(make_shards(tmp_path, names))) == ["b", "a"]


@pytest.mark.parametrize(
    "shard",
    ["../other.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "model.bin", "", ".", 7],
    ids=str,
)
def test_an_index_cannot_lead_out_of_its_directory(tmp_path: Path, shard: object) -> None:
    outside = tmp_path / "other.safetensors"
    write(tmp_path, make_safetensors({"a": entry()}, bytes(8)), outside.name)
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(ModelLoadError, match="not the plain name"):
        open_safetensors_dir(make_shards(model, {"a": shard}))


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        pytest.param(None, "weight_map", id="no-map"),
        pytest.param({}, "weight_map", id="empty-map"),
        pytest.param({"a": "absent.safetensors"}, "1 of 1 files are missing", id="missing-file"),
        pytest.param({"a": "x" * 5000 + ".safetensors"}, "missing", id="name-too-long"),
        pytest.param({"a": "other.safetensors"}, "tensor 'a'", id="missing-tensor"),
    ],
)
def test_a_wrong_index_is_named(tmp_path: Path, weight_map: object, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        open_safetensors_dir(make_shards(tmp_path, weight_map))


class _Exploit:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def test_pickle_weights_are_refused_and_not_run(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(_Exploit(tmp_path / "ran")))
    with pytest.raises(ModelLoadError, match="pickle"):
        open_safetensors_dir(model)
    assert not (tmp_path / "ran").exists()


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        write(tmp_path, make_safetensors({}), name)
    with pytest.raises(ModelLoadError, match=r"2 \.safetensors files"):
        open_safetensors_dir(tmp_path)
    with pytest.raises(ModelLoadError, match="not a directory"):
        open_safetensors_dir(tmp_path / "absent")
