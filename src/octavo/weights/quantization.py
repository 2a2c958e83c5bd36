"""What `quantization` means for a checkpoint: which tensors are rounded at load, and to what.

Matrices of the layers get the bits asked for. Embedding and head get 8: they are one matrix in many models, and its
errors go straight into every logit. What is small and decides much stays as it is: norms, biases, convolutions, and
the matrices that choose experts or set how fast a state decays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from octavo.config import Quantization
from octavo.errors import ConfigError
from octavo.formats.gguf_types import GgufType
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor

FLOAT_TYPES = (GgufType.F32, GgufType.F16, GgufType.BF16)

LAYER_TYPES: Mapping[Quantization, GgufType] = {"q8": GgufType.Q8_0, "q4": GgufType.Q4_1}
VOCABULARY_TYPE = GgufType.Q8_0
"""Of embedding and head."""

_VOCABULARY = frozenset({"embed_tokens.weight", "lm_head.weight"})
_STAYS_FLOAT = re.compile(r"\.(gate|router|shared_expert_gate|conv1d|in_proj_(a|b|ba))\.(proj\.)?weight$")


def quantized_checkpoint(checkpoint: Checkpoint, quantization: Quantization) -> Checkpoint:
    """Return the checkpoint with the type that each matrix is rounded to.

    Raises: ConfigError if its matrices are quantised already.
    """
    stored = {t.type.name for t in checkpoint.tensors.values() if len(t.shape) > 1 and t.type not in FLOAT_TYPES}
    if stored:
        raise ConfigError(
            f"quantization={quantization!r} rounds float weights, but those of {checkpoint.source} are quantised"
            f" already ({', '.join(sorted(stored))}): leave it out, or use the original checkpoint."
        )
    tensors = {
        name: replace(tensor, rounded_type=_rounded_type(name, tensor, quantization))
        for name, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


def _rounded_type(name: str, tensor: CheckpointTensor, quantization: Quantization) -> GgufType | None:
    if len(tensor.shape) < 2 or _STAYS_FLOAT.search(name):
        return None
    return VOCABULARY_TYPE if name in _VOCABULARY else LAYER_TYPES[quantization]
