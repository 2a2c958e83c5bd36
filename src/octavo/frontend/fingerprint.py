"""The numeric fingerprint: a hash of everything that an answer's numbers depend on besides the request's token ids.

What makes token ids of texts, and texts of token ids, is not in it: the tokenizer and the chat template.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.weights.checkpoint import Checkpoint

_NUM_DIGITS = 16


def numeric_fingerprint(*, isa: str, checkpoint: Checkpoint | None = None, **options: Any) -> str:
    """Return the fingerprint of a build and, with a checkpoint, of a loaded model.

    Args:
        isa: level of the kernels.
        options: numeric options by name, resolved.

    Notes: of a checkpoint's bytes, samples are hashed.
    """
    facts = {"version": __version__, "isa": isa, **options}
    if checkpoint is not None:
        facts["checkpoint"] = checkpoint.identity()
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_NUM_DIGITS]
