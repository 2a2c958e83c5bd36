"""Reads GGUF files, versions 2 and 3: metadata and tensor views, nothing trusted, nothing copied.

Flow: `open_gguf` maps the file, walks header, metadata and tensor list once, checks every count and range
against the size of the file, and returns views. Sizes are Python integers, so none of them can wrap. A model that is
split into several files is opened as one, by any of them.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelLoadError
from octavo.formats.gguf_split import part_names
from octavo.formats.gguf_types import SUPPORTED_TYPES, UNSUPPORTED_TYPE_NAMES, GgufType, supported_names
from octavo.formats.mapped_file import ByteView, Cursor, MappedFile

MAX_KEY_BYTES = 65_535
MAX_NUM_KEYS = 65_536
MAX_NUM_TENSORS = 65_536
MAX_NUM_STRINGS = 1 << 21
"""Over all arrays of a file; the largest vocabularies have 262,144 tokens and twice as many merges."""
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 16
_MAX_EXTENT = (1 << 63) - 1

_SPLIT_COUNT, _SPLIT_NUMBER, _SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, tuple[struct.Struct, np.dtype[np.generic]]] = {
    type_id: (struct.Struct("<" + code), np.dtype(dtype))
    for type_id, code, dtype in (
        (0, "B", "<u1"),
        (1, "b", "<i1"),
        (2, "H", "<u2"),
        (3, "h", "<i2"),
        (4, "I", "<u4"),
        (5, "i", "<i4"),
        (6, "f", "<f4"),
        (7, "?", "?"),
        (10, "Q", "<u8"),
        (11, "q", "<i8"),
        (12, "d", "<f8"),
    )
}

T = TypeVar("T")


class GgufStrings(Sequence[str]):
    """A string array of the metadata, decoded when an element is asked for."""

    def __init__(self, file: MappedFile, starts: npt.NDArray[np.int64], end: int) -> None:
        self._file = file
        self._starts = starts
        """Offset of each string's 64-bit length."""
        self._end = end

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = int(self._starts[index])
        (length,) = struct.unpack_from("<Q", self._file.map, start)
        return self._file.map[start + 8 : start + 8 + length].decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """Decode all strings at once."""
        if not len(self):
            return []
        base = int(self._starts[0])
        data = self._file.map[base : self._end]
        starts = (self._starts - base).tolist()
        ends = [*starts[1:], len(data)]
        return [data[s + 8 : e].decode("utf-8", "replace") for s, e in zip(starts, ends, strict=True)]

    def raw(self) -> bytes:
        """Return the array as it lies in the file: an identity to hash."""
        return self._file.map[int(self._starts[0]) : self._end] if len(self) else b""


GgufValue = str | int | float | bool | npt.NDArray[np.generic] | GgufStrings


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: its description, and a view of exactly its bytes."""

    name: str
    type: GgufType
    shape: tuple[int, ...]
    """Outermost first, so a matrix is [N, K]; blocks lie along the last axis."""
    data: ByteView


class GgufFile:
    """An open GGUF file. `metadata` and `tensors` are views of the mapped file."""

    def __init__(self, path: Path, metadata: Mapping[str, GgufValue], tensors: Mapping[str, GgufTensor]) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors

    def require(self, key: str, kind: type[T]) -> T:
        """Return a metadata value that must exist and be a `kind`; an integer serves as a float."""
        value = self.optional(key, kind)
        if value is None:
            raise ModelLoadError(f"{self.path}: metadata key {key!r} is missing")
        return value

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Return a metadata value that is a `kind` if it exists, else None."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if kind is float and type(value) is int:
            return cast(T, float(value))
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelLoadError(
                f"{self.path}: metadata key {key!r} is a {_kind_name(value)}, expected a {kind.__name__}"
            )
        return value


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Map a GGUF file and check its header, metadata and tensor list; of a split model, all its files.

    Raises: ModelLoadError naming the file and the field, whatever the bytes are.
    """
    file = _open_part(path)
    count = file.metadata.get(_SPLIT_COUNT, 0)
    return _join_parts(file, count) if isinstance(count, int) and count > 1 else file


def _open_part(path: str | os.PathLike[str]) -> GgufFile:
    file = MappedFile(path)
    cursor = Cursor(file)
    num_tensors, num_keys = _read_header(cursor)
    metadata = _read_metadata(cursor, num_keys)
    tensors = _read_tensors(cursor, num_tensors, _alignment(file, metadata))
    return GgufFile(file.path, metadata, tensors)


def _join_parts(opened: GgufFile, count: int) -> GgufFile:
    """Open all files of a split model: the metadata of the first, the tensors of all."""
    names = part_names(opened.path.name)
    if names is None or len(names) != count:
        raise ModelLoadError(
            f"{opened.path}: {_SPLIT_COUNT}: the model is split into {count} files, of which this one must be called"
            f" NAME-00001-of-{count:05}.gguf, or what its number is; give the files back their names"
        )
    paths = [opened.path.with_name(name) for name in names]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise ModelLoadError(
            f"{missing[0]}: missing: the model is split into {count} files, {len(missing)} of which are not there;"
            " all must lie in one directory"
        )
    parts = [opened if path == opened.path else _open_part(path) for path in paths]
    tensors: dict[str, GgufTensor] = {}
    for number, part in enumerate(parts):
        _check_part(part, number, count)
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelLoadError(f"{part.path}: tensor {name!r}: is in a file before this one, too")
            tensors[name] = tensor
    first = parts[0]
    num_tensors = first.metadata.get(_SPLIT_TENSORS, len(tensors))
    if not isinstance(num_tensors, int) or num_tensors != len(tensors):
        raise ModelLoadError(
            f"{first.path}: {_SPLIT_TENSORS}: {num_tensors}, but the {count} files hold {len(tensors)} tensors"
        )
    return GgufFile(first.path, first.metadata, tensors)


def _check_part(part: GgufFile, number: int, count: int) -> None:
    for key, expected in ((_SPLIT_COUNT, count), (_SPLIT_NUMBER, number)):
        value = part.metadata.get(key)
        if not isinstance(value, int) or value != expected:
            raise ModelLoadError(
                f"{part.path}: {key}: {value!r}, but its name makes it {expected}: the files are of different models,"
                " or were renamed"
            )


def _read_header(cursor: Cursor) -> tuple[int, int]:
    """Check magic and version; return the number of tensors and of metadata keys."""
    file = cursor.file
    start = cursor.advance(4, "magic")
    magic = file.map[start : start + 4]
    if magic != b"GGUF":
        file.fail("magic", f"{magic!r} instead of b'GGUF': not a GGUF file")
    version = cursor.u32("version")
    if version in (2 << 24, 3 << 24):
        file.fail("version", "the file is big-endian; only little-endian GGUF is supported")
    if version not in (2, 3):
        file.fail("version", f"{version}, supported: 2 and 3")
    num_tensors = cursor.u64("tensor count")
    num_keys = cursor.u64("metadata count")
    if num_tensors > MAX_NUM_TENSORS:
        file.fail("tensor count", f"{num_tensors}, at most {MAX_NUM_TENSORS} are allowed")
    if num_keys > MAX_NUM_KEYS:
        file.fail("metadata count", f"{num_keys}, at most {MAX_NUM_KEYS} are allowed")
    return num_tensors, num_keys


def _read_metadata(cursor: Cursor, num_keys: int) -> dict[str, GgufValue]:
    metadata: dict[str, GgufValue] = {}
    num_strings = 0
    for index in range(num_keys):
        key = _name(cursor, f"key of metadata entry {index}")
        if key in metadata:
            cursor.file.fail(f"metadata key {key!r}", "appears twice")
        value = _read_value(cursor, f"metadata key {key!r}", MAX_NUM_STRINGS - num_strings)
        num_strings += len(value) if isinstance(value, GgufStrings) else 0
        metadata[key] = value
    return metadata


def _name(cursor: Cursor, field: str) -> str:
    try:
        name = cursor.string(field, MAX_KEY_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        cursor.file.fail(field, f"is not UTF-8: {error.reason}")
    if not name:
        cursor.file.fail(field, "is empty")
    return name


def _read_value(cursor: Cursor, field: str, max_strings: int) -> GgufValue:
    type_id = cursor.u32(f"{field} type")
    if type_id == _STRING:
        return cursor.string(field).decode("utf-8", "replace")
    if type_id == _ARRAY:
        return _read_array(cursor, field, max_strings)
    if type_id not in _SCALARS:
        cursor.file.fail(field, f"unknown value type {type_id}")
    return cursor.unpack(_SCALARS[type_id][0], field)


def _read_array(cursor: Cursor, field: str, max_strings: int) -> GgufValue:
    type_id = cursor.u32(f"{field} element type")
    count = cursor.u64(f"{field} element count")
    if type_id == _STRING:
        return _read_strings(cursor, field, count, max_strings)
    if type_id not in _SCALARS:
        problem = "arrays of arrays are not supported" if type_id == _ARRAY else f"unknown element type {type_id}"
        cursor.file.fail(field, problem)
    dtype = _SCALARS[type_id][1]
    start = cursor.advance(count * dtype.itemsize, field)
    return cursor.file.view(start, cursor.offset).view(dtype)


def _read_strings(cursor: Cursor, field: str, count: int, max_strings: int) -> GgufStrings:
    """Find where each string starts. One tight loop: a vocabulary has up to 800,000 strings."""
    file, end = cursor.file, cursor.file.size
    if count > max_strings:
        file.fail(field, f"{count} strings, at most {MAX_NUM_STRINGS} are allowed in a file")
    if count * 8 > cursor.remaining:
        file.fail(field, f"{count} strings cannot fit in the {cursor.remaining} bytes left in the file")
    starts = array("q")
    append, unpack, data, offset = starts.append, struct.Struct("<Q").unpack_from, file.map, cursor.offset
    last_length_at = end - 8
    for index in range(count):
        if offset > last_length_at:
            file.fail(field, f"string {index} of {count} ends past the end of the file")
        append(offset)
        offset += 8 + unpack(data, offset)[0]
    if offset > end:
        file.fail(field, f"string {count - 1} of {count} ends past the end of the file")
    cursor.offset = offset
    return GgufStrings(file, np.frombuffer(starts, dtype=np.int64), offset)


def _alignment(file: MappedFile, metadata: Mapping[str, GgufValue]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        file.fail("general.alignment", f"{value!r}, must be a power of two from 8 to {MAX_ALIGNMENT}")
    return value


def _read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, GgufTensor]:
    """Read the tensor list, then place each tensor in the data section that follows it."""
    infos: dict[str, tuple[GgufType, tuple[int, ...], int]] = {}
    for index in range(num_tensors):
        name = _name(cursor, f"name of tensor {index}")
        if name in infos:
            cursor.file.fail(f"tensor {name!r}", "appears twice")
        infos[name] = _read_tensor_info(cursor, f"tensor {name!r}", alignment)
    data_start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    previous_end, previous_name = data_start, ""
    for name, (kind, shape, offset) in sorted(infos.items(), key=lambda item: item[1][2]):
        start = data_start + offset
        end = start + tensor_bytes(kind, shape)
        if end > cursor.file.size:
            cursor.file.fail(f"tensor {name!r}", f"ends at byte {end}, but the file has {cursor.file.size}")
        if start < previous_end:
            cursor.file.fail(f"tensor {name!r}", f"overlaps tensor {previous_name!r}")
        tensors[name] = GgufTensor(name, kind, shape, cursor.file.view(start, end))
        previous_end, previous_name = end, name
    return {name: tensors[name] for name in infos}


def _read_tensor_info(cursor: Cursor, field: str, alignment: int) -> tuple[GgufType, tuple[int, ...], int]:
    """Return type, shape and offset in the data section of one tensor."""
    num_dims = cursor.u32(f"{field} dimension count")
    if not 1 <= num_dims <= MAX_DIMS:
        cursor.file.fail(f"{field} dimension count", f"{num_dims}, must be 1 to {MAX_DIMS}")
    dims = [cursor.u64(f"{field} dimension {axis}") for axis in range(num_dims)]
    num_elements = 1
    for axis, extent in enumerate(dims):
        num_elements *= extent
        if not 1 <= extent <= _MAX_EXTENT or num_elements > _MAX_EXTENT:
            cursor.file.fail(f"{field} dimension {axis}", f"{extent} is zero, negative or too large")
    type_id = cursor.u32(f"{field} type")
    kind = SUPPORTED_TYPES.get(type_id)
    if kind is None:
        name = UNSUPPORTED_TYPE_NAMES.get(type_id, f"id {type_id}")
        cursor.file.fail(field, f"has type {name}, supported: {supported_names()}")
    if dims[0] % kind.block_elements:
        problem = f"rows of {dims[0]} elements are not whole {kind.name} blocks of {kind.block_elements}"
        cursor.file.fail(field, problem)
    offset = cursor.u64(f"{field} offset")
    if offset % alignment:
        cursor.file.fail(f"{field} offset", f"{offset} is not a multiple of the alignment {alignment}")
    return kind, tuple(reversed(dims)), offset


def tensor_bytes(kind: GgufType, shape: Sequence[int]) -> int:
    """Return the bytes a tensor takes in the file."""
    num_elements = 1
    for extent in shape:
        num_elements *= extent
    return num_elements // kind.block_elements * kind.block_bytes


def _kind_name(value: GgufValue) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name} array"
    return "string array" if isinstance(value, GgufStrings) else type(value).__name__
