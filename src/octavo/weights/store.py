"""The weights of a loaded model: packed matrices and float32 vectors, by the names of the Program.

Loading packs matrix after matrix straight from the mapped file. Nothing here keeps the file: once its last view is
gone, so are its pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from octavo.program.ops import Program, Weight
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor, Floats
from octavo.weights.packing import NATIVE_FORMATS, PackedMatrix, Packer, RowOrder


@dataclass(frozen=True, slots=True)
class WeightStore:
    """Everything the native program reads."""

    matrices: Mapping[str, tuple[PackedMatrix, ...]]
    """Per matrix its segments, stacked along N: one for each run of parts in the same format."""
    vectors: Mapping[str, Floats]

    @property
    def nbytes(self) -> int:
        """Bytes of all weights in memory."""
        return sum(self.bytes_by_name().values())

    def bytes_by_name(self) -> dict[str, int]:
        """Return the bytes of each weight in memory."""
        packed = {name: sum(segment.nbytes for segment in segments) for name, segments in self.matrices.items()}
        return {**packed, **{name: vector.nbytes for name, vector in self.vectors.items()}}

    def quantized_matrices(self) -> frozenset[str]:
        """Return the names of the matrices whose segments are all quantised."""
        return frozenset(
            name for name, segments in self.matrices.items() if all(segment.is_quantized for segment in segments)
        )


def load_weights(program: Program, checkpoint: Checkpoint, *, pack: Packer, num_threads: int) -> WeightStore:
    """Check a checkpoint against a program and pack what the program reads.

    Raises: ModelLoadError if names or shapes do not fit.
    """
    checkpoint.check(program)

    def pack_matrix(weight: Weight) -> tuple[PackedMatrix, ...]:
        tensors = [checkpoint.tensors[part.name] for part in weight.parts]
        return tuple(
            _pack_segment(list(segment), NATIVE_FORMATS[kind], pack, num_threads)
            for kind, segment in groupby(tensors, key=lambda tensor: tensor.type)
        )

    def vector(weight: Weight) -> Floats:
        return np.concatenate([checkpoint.tensors[part.name].values() for part in weight.parts])

    return WeightStore(
        matrices={w.name: pack_matrix(w) for w in program.weights if w.is_matrix},
        vectors={w.name: vector(w) for w in program.weights if not w.is_matrix},
    )


def _pack_segment(tensors: list[CheckpointTensor], weight_format: int, pack: Packer, num_threads: int) -> PackedMatrix:
    """Stack tensors of one format."""
    num_rows = sum(tensor.shape[0] for tensor in tensors)
    sources = [tensor.data for tensor in tensors]
    return pack(weight_format, sources, num_rows, tensors[0].shape[1], _stacked_row_order(tensors), num_threads)


def _stacked_row_order(tensors: list[CheckpointTensor]) -> RowOrder | None:
    """Return where each row of the stack is among the rows of all tensors, or None if they are in order."""
    if all(tensor.row_order is None for tensor in tensors):
        return None
    orders: list[RowOrder] = []
    start = 0
    for tensor in tensors:
        in_order = np.arange(tensor.shape[0], dtype=np.int32)
        orders.append(start + (in_order if tensor.row_order is None else tensor.row_order))
        start += tensor.shape[0]
    return np.concatenate(orders, dtype=np.int32)
