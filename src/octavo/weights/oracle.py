"""Weights for the oracle: each tensor of the checkpoint as float32, from the file's bits, not from packed memory."""

from __future__ import annotations

from octavo.program.ops import Program
from octavo.program.reference import ReferenceWeights
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.quantization import FLOAT_TYPES


def reference_weights(program: Program, checkpoint: Checkpoint) -> ReferenceWeights:
    """Dequantise what the program reads. Takes four bytes for each weight.

    Raises: ModelLoadError if names or shapes do not fit.
    """
    checkpoint.check(program)
    names = [part.name for weight in program.weights for part in weight.parts]
    return ReferenceWeights(
        values={name: checkpoint.tensors[name].values() for name in names},
        quantized=frozenset(name for name in names if checkpoint.tensors[name].packed_type not in FLOAT_TYPES),
    )
