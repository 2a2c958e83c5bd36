"""Reads safetensors files and sharded directories: tensor views, nothing trusted, nothing copied.

Our own reader, because the safetensors library cannot give bfloat16 to numpy. Pickle files are never opened.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from octavo.errors import ModelLoadError
from octavo.formats.json_file import parse_json_object, read_json_object
from octavo.formats.mapped_file import ByteView, Cursor, MappedFile

MAX_HEADER_BYTES = 16 << 20
"""The format allows 100 MB; a header of 100,000 tensors takes 12 MB, and parsing must stay below a second."""
MAX_DIMS = 8
_MAX_EXTENT = (1 << 63) - 1

DTYPE_BYTES: dict[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor: its description, and a view of exactly its bytes."""

    name: str
    dtype: str
    """As the format spells it: F32, F16, BF16, I64 …"""
    shape: tuple[int, ...]
    data: ByteView


def open_safetensors(path: str | os.PathLike[str]) -> dict[str, SafetensorsTensor]:
    """Map one file and check its header: the tensors cover the data section without gap or overlap.

    Raises: ModelLoadError naming the file and the field, whatever the bytes are.
    """
    file = MappedFile(path)
    cursor = Cursor(file)
    header_bytes = cursor.u64("header length")
    if header_bytes > MAX_HEADER_BYTES:
        file.fail("header length", f"{header_bytes} bytes, at most {MAX_HEADER_BYTES} are allowed")
    start = cursor.advance(header_bytes, "header")
    header = parse_json_object(file.map[start : cursor.offset], file.path, "header")
    header.pop("__metadata__", None)
    entries = [(*_check_entry(file, name, entry), name) for name, entry in header.items()]
    tensors: dict[str, SafetensorsTensor] = {}
    previous_end = 0
    for begin, end, dtype, shape, name in sorted(entries, key=lambda e: (e[0], e[1])):
        if begin != previous_end:
            problem = "overlaps the tensor before it" if begin < previous_end else "leaves a gap before it"
            file.fail(f"tensor {name!r} data_offsets", f"[{begin}, {end}] {problem}, which ends at {previous_end}")
        if end > cursor.remaining:
            file.fail(f"tensor {name!r} data_offsets", f"ends at {end}, but only {cursor.remaining} bytes follow")
        data = file.view(cursor.offset + begin, cursor.offset + end)
        tensors[name] = SafetensorsTensor(name, dtype, shape, data)
        previous_end = end
    if previous_end != cursor.remaining:
        file.fail("data section", f"has {cursor.remaining} bytes, but the tensors cover {previous_end}")
    return tensors


def _check_entry(file: MappedFile, name: str, entry: object) -> tuple[int, int, str, tuple[int, ...]]:
    """Return begin, end, dtype and shape of one header entry, which agree with each other."""
    field = f"tensor {name!r}"
    if not isinstance(entry, dict):
        file.fail(field, "its header entry is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        file.fail(f"{field} dtype", f"{dtype!r}, supported: {', '.join(DTYPE_BYTES)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_is_extent, shape)):
        file.fail(f"{field} shape", f"must be a list of at most {MAX_DIMS} non-negative integers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_extent, offsets)):
        file.fail(f"{field} data_offsets", "must be two non-negative integers")
    begin, end = offsets
    num_bytes = DTYPE_BYTES[dtype]
    for extent in shape:
        num_bytes *= extent
    if end - begin != num_bytes:
        file.fail(field, f"dtype {dtype} and shape {shape} take {num_bytes} bytes, data_offsets span {end - begin}")
    return begin, end, dtype, tuple(shape)


def _is_extent(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_EXTENT


def open_safetensors_dir(path: str | os.PathLike[str]) -> dict[str, SafetensorsTensor]:
    """Open the checkpoint in a directory: through its index file if there is one, else its only file.

    Raises: ModelLoadError, also when there are only pickle files, which are never opened.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ModelLoadError(f"{directory}: not a directory")
    if (directory / INDEX_NAME).exists():
        return _open_shards(directory)
    if (directory / SINGLE_NAME).exists():
        return open_safetensors(directory / SINGLE_NAME)
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return open_safetensors(files[0])
    if files:
        raise ModelLoadError(f"{directory}: {len(files)} .safetensors files but no {INDEX_NAME} that says which to use")
    pickles = sorted(file.name for pattern in _PICKLE_PATTERNS for file in directory.glob(pattern))
    if pickles:
        raise ModelLoadError(
            f"{directory}: the weights are pickle files ({pickles[0]} …), which can run code when opened and are"
            " refused; use a checkpoint in safetensors format"
        )
    raise ModelLoadError(f"{directory}: holds no .safetensors file")


def _open_shards(directory: Path) -> dict[str, SafetensorsTensor]:
    index_path = directory / INDEX_NAME
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index_path}: weight_map: must be an object that maps tensor names to files")
    shard_names = {_check_shard_name(index_path, name, shard) for name, shard in weight_map.items()}
    missing = sorted(name for name in shard_names if not os.path.isfile(directory / name))
    if missing:
        raise ModelLoadError(
            f"{index_path}: weight_map: {len(missing)} of {len(shard_names)} files are missing, first {missing[0]};"
            " download the model again"
        )
    shards = {name: open_safetensors(directory / name) for name in sorted(shard_names)}
    tensors: dict[str, SafetensorsTensor] = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise ModelLoadError(f"{directory / shard}: tensor {name!r}: missing, though {INDEX_NAME} places it here")
        tensors[name] = shards[shard][name]
    return tensors


def _check_shard_name(index_path: Path, tensor: str, shard: object) -> str:
    """Return the file name if it is a plain one: nothing outside the model's directory is ever read."""
    is_plain = (
        isinstance(shard, str)
        and PurePosixPath(shard).name == shard == PureWindowsPath(shard).name
        and shard.endswith(".safetensors")
        and "\0" not in shard
    )
    if not is_plain:
        raise ModelLoadError(
            f"{index_path}: weight_map: tensor {tensor!r} is in {str(shard)[:200]!r}, which is not the plain name of"
            " a .safetensors file beside the index"
        )
    return str(shard)
