"""Keeps tokenizers rebuilt from GGUF metadata in the user's cache, so that the next start only loads them.

An entry is one file: the SHA-256 of what follows, a newline, the tokenizer.json document. It is written to a temporary
name and renamed, so a reader sees all of it or nothing; one that fails its checksum counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import tokenizers

from octavo import envs
from octavo.formats.gguf import GgufFile, GgufStrings

_LAYOUT_VERSION = 1
"""Counts changes in how documents are built; older entries are then rebuilt."""
_DIGEST_BYTES = 64


def cache_path(file: GgufFile) -> Path:
    """Return where the tokenizer of this file is kept: the name is a hash of all its tokenizer metadata."""
    digest = hashlib.sha256(f"{_LAYOUT_VERSION} {tokenizers.__version__}".encode())
    for key in sorted(k for k in file.metadata if k.startswith("tokenizer.ggml.")):
        value = file.metadata[key]
        if isinstance(value, GgufStrings):
            content = value.raw()
        else:
            content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        digest.update(f"\n{key} {type(value).__name__} {len(content)}\n".encode())
        digest.update(content)
    return envs.cache_dir() / "tokenizers" / f"{digest.hexdigest()[:40]}.tokenizer"


def read_entry(path: Path) -> bytes | None:
    """Return the document, or None if there is no whole entry."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, document = data[:_DIGEST_BYTES], data[_DIGEST_BYTES + 1 :]
    return document if digest == hashlib.sha256(document).hexdigest().encode() else None


def write_entry(path: Path, document: bytes) -> None:
    """Write the entry if the cache can be written; a read-only home is no reason to fail."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        try:
            with open(handle, "wb") as file:
                file.write(hashlib.sha256(document).hexdigest().encode() + b"\n" + document)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
