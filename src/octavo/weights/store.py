"""The weights of a loaded model: packed matrices and float32 vectors, by the names of the Program.

Loading packs matrix after matrix straight from the mapped file. Nothing here keeps the file: once its last view is
gone, so are its pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from octavo.program.ops import Program, Weight
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor, Floats
from octavo.weights.packing import NATIVE_FORMATS, PackedMatrix, Packer, RowOrder, format_name
from octavo.weights.quantizer import WeightQuantizer


@dataclass(frozen=True, slots=True)
class WeightStore:
    """Everything the native program reads."""

    matrices: Mapping[str, tuple[PackedMatrix, ...]]
    """Per matrix its segments, stacked along N: one for each run of parts in the same format."""
    vectors: Mapping[str, Floats]

    def bytes_by_name(self) -> dict[str, int]:
        """Return the bytes of each weight in memory."""
        packed = {name: sum(segment.nbytes for segment in segments) for name, segments in self.matrices.items()}
        return {**packed, **{name: vector.nbytes for name, vector in self.vectors.items()}}

    def quantized_matrices(self) -> frozenset[str]:
        """Return the names of the matrices whose segments are all quantised."""
        return frozenset(
            name for name, segments in self.matrices.items() if all(segment.is_quantized for segment in segments)
        )

    @property
    def format_bytes(self) -> dict[str, int]:
        """Bytes of the matrices in memory by the name of their format, the largest first."""
        sizes: Counter[str] = Counter()
        for segment in (segment for segments in self.matrices.values() for segment in segments):
            sizes[format_name(segment.format)] += segment.nbytes
        return dict(sizes.most_common())


def load_weights(
    program: Program,
    checkpoint: Checkpoint,
    *,
    pack: Packer,
    pack_made: Packer | None = None,
    quantize: WeightQuantizer | None = None,
) -> WeightStore:
    """Check a checkpoint against a program and pack what the program reads.

    Args:
        pack_made: packs bytes that are made on demand, and is done with them when it returns; None: `pack` does both.
        quantize: makes the matrices of tensors that are to be rounded.

    Raises: ModelLoadError if names or shapes do not fit, or a value cannot be rounded.
    """
    checkpoint.check(program)

    def pack_matrix(weight: Weight) -> tuple[PackedMatrix, ...]:
        parts = [(part.name, checkpoint.tensors[part.name]) for part in weight.parts]
        segments = [
            dict(segment) for _, segment in groupby(parts, key=lambda part: (part[1].type, part[1].packed_type))
        ]
        return tuple(pack_segment(f"{weight.name}.{i}", tensors) for i, tensors in enumerate(segments))

    def pack_segment(name: str, tensors: dict[str, CheckpointTensor]) -> PackedMatrix:
        stack = list(tensors.values())
        shape = sum(tensor.shape[0] for tensor in stack), stack[0].shape[1]
        order = _stacked_row_order(stack)
        if stack[0].rounded_type is None:
            is_made = any(callable(tensor.source) for tensor in stack)
            packer = pack_made if is_made and pack_made is not None else pack
            return packer(NATIVE_FORMATS[stack[0].type], [tensor.data for tensor in stack], *shape, order)
        assert quantize is not None, "a checkpoint with tensors to round comes with what rounds them"
        return quantize(name, tensors, shape, order)

    def vector(weight: Weight) -> Floats:
        return np.concatenate([checkpoint.tensors[part.name].values() for part in weight.parts])

    return WeightStore(
        matrices={w.name: pack_matrix(w) for w in program.weights if w.is_matrix},
        vectors={w.name: vector(w) for w in program.weights if not w.is_matrix},
    )


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
