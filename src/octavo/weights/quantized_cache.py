"""Keeps rounded weights in the user's cache, so that the next start only reads them.

An entry is one safetensors file: each packed matrix as bytes, and a CRC-32 of each. Its name says which files it was
made from, and how; when one of them changes, the next write replaces it. It is written to a temporary name and renamed,
so a reader sees all of it or nothing; a matrix that fails its checksum counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from octavo import envs
from octavo.config import Quantization
from octavo.errors import ModelLoadError
from octavo.formats.mapped_file import ByteView
from octavo.formats.safetensors import SafetensorsTensor, open_safetensors
from octavo.version import __version__
from octavo.weights.checkpoint import Checkpoint

logger = logging.getLogger("octavo")

_LAYOUT_VERSION = 1
"""Counts changes of the file's layout."""
_CHECKSUMS = "crc32"
"""Name of the tensor that holds the checksums, in the order of the others."""
_SPARE_BYTES = 1 << 30
"""What writing an entry leaves free on the disk."""
_ABANDONED_SECONDS = 3600.0
"""A temporary file that nobody has written to for so long is nobody's; a younger one may be another process's."""


def cache_directory() -> Path:
    """Return where entries are kept; it may not exist yet."""
    return envs.cache_dir() / "weights"


class QuantizedCache:
    """The entry of one checkpoint, rounded in one way.

    Args:
        packing_version: of the native module; says how matrices are laid out and rounded.
    """

    def __init__(self, checkpoint: Checkpoint, quantization: Quantization, packing_version: int) -> None:
        model = Path(checkpoint.source)
        files = sorted(model.glob("*.safetensors")) if model.is_dir() else [model]
        facts = {
            "versions": [_LAYOUT_VERSION, packing_version, __version__],
            "files": [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files],
            "tensors": checkpoint.identity(),
        }
        place = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:12]
        content = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
        self._family = f"{place}-{quantization}-"
        self.path = cache_directory() / f"{self._family}{content}.safetensors"
        self._tensors, self._checksums = _open_entry(self.path)

    def read(self, name: str) -> ByteView | None:
        """Return the bytes of a matrix, or None if the entry does not have them whole."""
        tensor = self._tensors.get(name)
        return tensor.data if tensor is not None and zlib.crc32(tensor.data.data) == self._checksums[name] else None

    def write(self, matrices: Mapping[str, ByteView]) -> None:
        """Write the entry, in place of older ones of the same model, if the disk has room and can be written."""
        num_bytes = sum(data.nbytes for data in matrices.values())
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.path.parent).free
            if free < num_bytes + _SPARE_BYTES:
                logger.warning(
                    "the quantised weights (%.1f GB) were not kept: %s has %.1f GB free",
                    num_bytes / 1e9,
                    self.path.parent,
                    free / 1e9,
                )
                return
            self._replace(matrices)
        except OSError as error:
            logger.warning("the quantised weights were not kept: %s", error)

    def _replace(self, matrices: Mapping[str, ByteView]) -> None:
        temporaries = f"{self._family}new-"
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=temporaries)
        try:
            with open(handle, "wb") as file:
                _write_entry(file, matrices)
            os.replace(temporary, self.path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        for older in self.path.parent.glob(f"{self._family}*"):
            is_new = older == self.path or (older.name.startswith(temporaries) and not _is_abandoned(older))
            if not is_new:
                older.unlink(missing_ok=True)


def _is_abandoned(temporary: Path) -> bool:
    try:
        return time.time() - temporary.stat().st_mtime > _ABANDONED_SECONDS
    except FileNotFoundError:  # renamed by who wrote it
        return False


def _open_entry(path: Path) -> tuple[dict[str, SafetensorsTensor], dict[str, int]]:
    """Return the tensors of an entry and their checksums by name; nothing if there is no readable one."""
    if not path.exists():
        return {}, {}
    try:
        tensors = open_safetensors(path)
        checksums = tensors.pop(_CHECKSUMS).data.view("<u4").tolist()
        return tensors, dict(zip(tensors, checksums, strict=True))
    except (ModelLoadError, KeyError, ValueError) as error:
        logger.warning("quantised weights in the cache are made anew: %s", error)
        return {}, {}


def _write_entry(file: IO[bytes], matrices: Mapping[str, ByteView]) -> None:
    header, end = {}, 0
    for name, num_bytes in [*((name, data.nbytes) for name, data in matrices.items()), (_CHECKSUMS, 4 * len(matrices))]:
        header[name] = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    text = json.dumps(header).encode()
    file.write(len(text).to_bytes(8, "little") + text)
    checksums = []
    for data in matrices.values():
        checksums.append(zlib.crc32(data.data))
        file.write(data.data)
    file.write(np.array(checksums, "<u4").tobytes())
