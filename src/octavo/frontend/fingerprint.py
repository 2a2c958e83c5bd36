"""The numeric fingerprint: a hash of everything besides the request that an answer's bits depend on."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.weights.checkpoint import Checkpoint

_SAMPLE_BYTES = 64
_NUM_DIGITS = 16


def numeric_fingerprint(*, isa: str, checkpoint: Checkpoint | None = None, **options: Any) -> str:
    """Return the fingerprint of a build and, with a checkpoint, of a loaded model.

    Args:
        isa: level of the kernels.
        options: numeric options by name, resolved.

    Notes: of each tensor the name, type, shape and two samples are hashed; all bytes would be the whole file.
    """
    facts = {"version": __version__, "isa": isa, **options}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(checkpoint.tensors.items()) if checkpoint is not None else ():
        middle = len(tensor.data) // 2
        digest.update(f"{name} {tensor.type.name} {tensor.shape} {len(tensor.data)}".encode())
        digest.update(tensor.data[:_SAMPLE_BYTES].tobytes())
        digest.update(tensor.data[middle : middle + _SAMPLE_BYTES].tobytes())
    return digest.hexdigest()[:_NUM_DIGITS]
