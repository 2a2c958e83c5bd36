"""GGUF files: what is read equals what was written, and a malformed file ends in an error that names file and field."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from model_files import make_gguf, pack_header, pack_string, pack_tensor_info, pack_value

from octavo.errors import ModelLoadError
from octavo.formats.gguf import MAX_NUM_STRINGS, GgufStrings, open_gguf
from octavo.formats.gguf_types import SUPPORTED_TYPES, UNSUPPORTED_TYPE_NAMES, GgufType

F32 = GgufType.F32.type_id
BIG = 1 << 63


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return path


def with_keys(*entries: bytes) -> bytes:
    return pack_header(0, len(entries)) + b"".join(entries)


def with_tensor(info: bytes, data: bytes = b"\0" * 256) -> bytes:
    head = pack_header(1, 0) + info
    return head + b"\0" * (-len(head) % 32) + data


def test_metadata_and_tensors_are_those_the_reference_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.uint32", 7)
    writer.add_int8("a.int8", -3)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Größe")
    writer.add_array("a.strings", ["x", "", "Ġy"])
    writer.add_array("a.ints", [1, -2, 3])
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("matrix", matrix)
    writer.add_tensor("vector", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = open_gguf(path)

    metadata = dict(file.metadata)
    strings, ints = metadata.pop("a.strings"), metadata.pop("a.ints")
    assert metadata == {
        "general.architecture": "llama",
        "a.uint32": 7,
        "a.int8": -3,
        "a.float64": 0.1,
        "a.bool": True,
        "a.string": "Größe",
    }
    assert isinstance(strings, GgufStrings)
    assert strings.tolist() == ["x", "", "Ġy"]
    assert [strings[0], strings[-1], strings[0:2]] == ["x", "Ġy", ["x", ""]]
    assert np.array_equal(ints, [1, -2, 3])
    assert list(file.tensors) == ["matrix", "vector"]
    assert file.tensors["matrix"].shape == (3, 4)
    assert file.tensors["matrix"].data.tobytes() == matrix.tobytes()
    assert file.tensors["vector"].type is GgufType.F16


def test_type_ids_and_block_sizes_are_those_of_the_reference() -> None:
    for kind in gguf.GGMLQuantizationType:
        if kind.value in SUPPORTED_TYPES:
            ours = SUPPORTED_TYPES[kind.value]
            assert (ours.name, (ours.block_elements, ours.block_bytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])
        else:
            assert UNSUPPORTED_TYPE_NAMES[kind.value] == kind.name


def test_tensor_views_cannot_be_written(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path, make_gguf({}, {"t": (F32, [8], bytes(32))})))
    with pytest.raises(ValueError, match="read-only"):
        file.tensors["t"].data[0] = 1


def test_version_2_is_read(tmp_path: Path) -> None:
    data = bytearray(make_gguf({"k": 1}))
    data[4] = 2
    assert open_gguf(write(tmp_path, bytes(data))).metadata["k"] == 1


def test_numeric_arrays_at_odd_offsets_are_read(tmp_path: Path) -> None:
    numbers = np.arange(9, dtype=np.int32)
    file = open_gguf(write(tmp_path, make_gguf({"odd": "abc", "numbers": numbers})))
    assert np.array_equal(file.metadata["numbers"], numbers)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"GG", "magic", id="shorter-than-magic"),
        pytest.param(pack_header(0, 0, magic=b"GGML"), "magic", id="other-magic"),
        pytest.param(pack_header(0, 0, version=1), "version", id="version-1"),
        pytest.param(pack_header(0, 0, version=4), "version", id="version-4"),
        pytest.param(pack_header(0, 0, version=3 << 24), "big-endian", id="big-endian"),
        pytest.param(pack_header(BIG, 0), "tensor count", id="tensor-count-2^63"),
        pytest.param(pack_header(0, BIG), "metadata count", id="key-count-2^63"),
        pytest.param(pack_header(0, 60_000), "metadata entry 0", id="key-count-beyond-end"),
        pytest.param(pack_header(60_000, 0), "tensor 0", id="tensor-count-beyond-end"),
        pytest.param(with_keys(struct.pack("<Q", BIG)), "metadata entry 0", id="key-length-2^63"),
        pytest.param(with_keys(struct.pack("<Q", 100) + b"abc"), "metadata entry 0", id="key-length-beyond-end"),
        pytest.param(with_keys(pack_string(b"\xff\xfe") + pack_value(1)), "not UTF-8", id="key-not-utf8"),
        pytest.param(with_keys(pack_string("") + pack_value(1)), "is empty", id="key-empty"),
        pytest.param(with_keys(*[pack_string("k") + pack_value(1)] * 2), "'k': appears twice", id="key-twice"),
        pytest.param(
            with_keys(pack_string("k") + struct.pack("<I", 99)), "'k': unknown value type 99", id="value-type"
        ),
        pytest.param(with_keys(pack_string("k") + struct.pack("<IH", 4, 1)), "'k'", id="scalar-truncated"),
        pytest.param(with_keys(pack_string("k") + struct.pack("<IQ", 8, BIG)), "'k'", id="string-length-2^63"),
        pytest.param(with_keys(pack_string("k") + struct.pack("<IIQ", 9, 4, BIG)), "'k'", id="array-count-2^63"),
        pytest.param(with_keys(pack_string("k") + struct.pack("<IIQ", 9, 4, 1 << 62)), "'k'", id="array-bytes-wrap"),
        pytest.param(with_keys(pack_string("k") + struct.pack("<IIQ", 9, 9, 1)), "arrays of arrays", id="nested-array"),
        pytest.param(with_keys(pack_string("k") + struct.pack("<IIQ", 9, 77, 1)), "element type 77", id="element-type"),
        pytest.param(with_keys(pack_string("k") + struct.pack("<IIQ", 9, 8, BIG)), "'k'", id="string-count-2^63"),
        pytest.param(
            with_keys(pack_string("k") + struct.pack("<IIQ", 9, 8, MAX_NUM_STRINGS)),
            "'k'",
            id="string-count-beyond-end",
        ),
        pytest.param(
            with_keys(pack_string("k") + struct.pack("<IIQQQ", 9, 8, 2, 1 << 62, 0)), "'k'", id="string-in-array-2^62"
        ),
        pytest.param(
            with_keys(pack_string("general.alignment") + pack_value(0)), "general.alignment", id="alignment-0"
        ),
        pytest.param(
            with_keys(pack_string("general.alignment") + pack_value(3)), "general.alignment", id="alignment-3"
        ),
        pytest.param(
            with_keys(pack_string("general.alignment") + pack_value(1 << 31)), "general.alignment", id="alignment-2^31"
        ),
        pytest.param(
            with_keys(pack_string("general.alignment") + pack_value("32")), "general.alignment", id="alignment-string"
        ),
    ],
)
def test_malformed_header_or_metadata_is_named(tmp_path: Path, data: bytes, field: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(ModelLoadError) as error:
        open_gguf(path)
    assert str(path) in str(error.value)
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("info", "field"),
    [
        pytest.param(pack_tensor_info("t", [], F32, 0), "dimension count", id="no-dimensions"),
        pytest.param(pack_tensor_info("t", [1] * 5, F32, 0), "dimension count", id="5-dimensions"),
        pytest.param(pack_tensor_info("t", [1], F32, 0, num_dims=2**32 - 1), "dimension count", id="2^32-dimensions"),
        pytest.param(pack_tensor_info("t", [0, 4], F32, 0), "dimension 0", id="dimension-0"),
        pytest.param(pack_tensor_info("t", [2**64 - 1], F32, 0), "dimension 0", id="dimension-minus-1"),
        pytest.param(pack_tensor_info("t", [2**32, 2**32], F32, 0), "dimension 1", id="elements-wrap-64-bits"),
        pytest.param(pack_tensor_info("t", [2**62], F32, 0), "ends at byte", id="bytes-wrap-64-bits"),
        pytest.param(pack_tensor_info("t", [32], 17, 0), "has type IQ2_XS, supported: F32", id="unsupported-type"),
        pytest.param(pack_tensor_info("t", [32], 12345, 0), "has type id 12345", id="unknown-type"),
        pytest.param(pack_tensor_info("t", [33], GgufType.Q8_0.type_id, 0), "whole Q8_0 blocks", id="partial-block"),
        pytest.param(pack_tensor_info("t", [8], F32, 1 << 20), "ends at byte", id="offset-past-end"),
        pytest.param(pack_tensor_info("t", [8], F32, 2**64 - 32), "ends at byte", id="offset-wraps"),
        pytest.param(pack_tensor_info("t", [8], F32, 7), "alignment 32", id="offset-unaligned"),
        pytest.param(pack_tensor_info("t", [65], F32, 0), "ends at byte", id="one-element-too-long"),
    ],
)
def test_malformed_tensor_is_named(tmp_path: Path, info: bytes, field: str) -> None:
    with pytest.raises(ModelLoadError, match=r"model\.gguf: tensor 't'") as error:
        open_gguf(write(tmp_path, with_tensor(info)))
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("names", "offsets", "field"),
    [
        pytest.param(["t", "t"], [0, 32], "'t': appears twice", id="same-name"),
        pytest.param(["t", "u"], [0, 0], "'u': overlaps tensor 't'", id="same-bytes"),
    ],
)
def test_tensors_that_clash_are_named(tmp_path: Path, names: list[str], offsets: list[int], field: str) -> None:
    infos = [pack_tensor_info(name, [8], F32, offset) for name, offset in zip(names, offsets, strict=True)]
    head = pack_header(2, 0) + b"".join(infos)
    with pytest.raises(ModelLoadError, match=field):
        open_gguf(write(tmp_path, head + b"\0" * (-len(head) % 32) + bytes(256)))


def test_every_truncation_of_a_file_is_an_error(tmp_path: Path) -> None:
    whole = make_gguf({"a": "b", "c": ["d", "e"]}, {"t": (F32, [8], bytes(32))})
    for length in range(len(whole)):
        with pytest.raises(ModelLoadError, match=r"model\.gguf"):
            open_gguf(write(tmp_path, whole[:length]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ModelLoadError, match="not a regular file"):
        open_gguf(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    "make_path",
    [
        pytest.param(lambda tmp: tmp / "absent.gguf", id="absent"),
        pytest.param(lambda tmp: tmp, id="directory"),
        pytest.param(lambda _: "a\0b", id="nul-in-name"),
    ],
)
def test_unreadable_path_is_an_error(tmp_path: Path, make_path: Callable[[Path], Path]) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read"):
        open_gguf(make_path(tmp_path))


def test_metadata_of_the_wrong_kind_is_named(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path, make_gguf({"count": "many", "flag": True, "eps": 1, "list": ["a"]})))
    assert file.require("eps", float) == 1.0
    assert file.optional("absent", int) is None
    with pytest.raises(ModelLoadError, match=r"'count' is a str, expected a int"):
        file.require("count", int)
    with pytest.raises(ModelLoadError, match=r"'flag' is a bool, expected a int"):
        file.require("flag", int)
    with pytest.raises(ModelLoadError, match=r"'list' is a string array, expected a str"):
        file.optional("list", str)
    with pytest.raises(ModelLoadError, match=r"'absent' is missing"):
        file.require("absent", int)
