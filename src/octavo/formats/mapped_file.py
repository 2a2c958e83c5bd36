"""Files nobody vouches for: small ones whole, large ones as a read-only map with a cursor that never leaves it."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelLoadError

ByteView = npt.NDArray[np.uint8]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def check_regular(path: Path) -> int:
    """Return the size of a file that can be read at once: a pipe or a device might never end.

    Raises: OSError; ModelLoadError for anything but a regular file.
    """
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise ModelLoadError(f"{path}: cannot be read: not a regular file")
    return info.st_size


def read_small_file(path: Path, max_bytes: int) -> bytes:
    """Return the whole file. Raises: as `check_regular`; ModelLoadError for more than `max_bytes`."""
    size = check_regular(path)
    if size > max_bytes:
        raise ModelLoadError(f"{path}: {size} bytes, at most {max_bytes} are allowed")
    return path.read_bytes()


class MappedFile:
    """The bytes of one file. Stays mapped as long as this object or an array view of it lives."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            check_regular(self.path)
            with open(self.path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise ModelLoadError(f"{self.path}: the file is empty")
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
            raise ModelLoadError(f"{self.path}: cannot be read: {error}") from error
        self._bytes: ByteView = np.frombuffer(self.map, dtype=np.uint8)

    def view(self, start: int, end: int) -> ByteView:
        """Return the bytes [start, end) without copying. The caller has checked the range."""
        return self._bytes[start:end]

    def fail(self, field: str, problem: str) -> NoReturn:
        """Raise the error that every malformed file ends in: file, field, problem."""
        raise ModelLoadError(f"{self.path}: {field}: {problem}")


class Cursor:
    """Reads little-endian fields one after another; a field that would end past the file is an error."""

    def __init__(self, file: MappedFile, offset: int = 0) -> None:
        self.file = file
        self.offset = offset

    @property
    def remaining(self) -> int:
        """Bytes left."""
        return self.file.size - self.offset

    def advance(self, num_bytes: int, field: str) -> int:
        """Step over `num_bytes` and return where they start."""
        if num_bytes > self.remaining:
            self.file.fail(
                field, f"needs {num_bytes} bytes at offset {self.offset}, but the file ends after {self.remaining}"
            )
        start = self.offset
        self.offset += num_bytes
        return start

    def unpack(self, layout: struct.Struct, field: str) -> int | float | bool:
        """Read one scalar."""
        value: int | float | bool = layout.unpack_from(self.file.map, self.advance(layout.size, field))[0]
        return value

    def u32(self, field: str) -> int:
        """Read an unsigned 32-bit integer."""
        return int(self.unpack(_U32, field))

    def u64(self, field: str) -> int:
        """Read an unsigned 64-bit integer."""
        return int(self.unpack(_U64, field))

    def string(self, field: str, max_bytes: int | None = None) -> bytes:
        """Read a string with a 64-bit length in front."""
        length = self.u64(f"{field} length")
        if max_bytes is not None and length > max_bytes:
            self.file.fail(f"{field} length", f"{length} bytes, at most {max_bytes} are allowed")
        start = self.advance(length, field)
        return self.file.map[start : start + length]
