"""From checkpoint tensors to one packed matrix: format ids, row orders. The packing itself is native.

Packed weights keep the file's bits; only their place changes (csrc/cpu/gemm.h). Rounding them is `quantizer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelLoadError
from octavo.formats.gguf_types import GgufType
from octavo.formats.mapped_file import ByteView
from octavo.program import instructions

RowOrder = npt.NDArray[np.int32]

NATIVE_FORMATS: dict[GgufType, int] = {
    GgufType.F32: 0,
    GgufType.F16: 1,
    GgufType.BF16: 2,
    GgufType.Q4_0: 3,
    GgufType.Q4_1: 4,
    GgufType.Q5_0: 5,
    GgufType.Q5_1: 6,
    GgufType.Q8_0: 7,
    GgufType.Q4_K: 8,
    GgufType.Q5_K: 9,
    GgufType.Q6_K: 10,
    GgufType.Q2_K: 11,
    GgufType.Q3_K: 12,
    GgufType.IQ4_NL: 13,
    GgufType.IQ4_XS: 14,
    GgufType.MXFP4: 15,
    GgufType.Q4_Z: 16,
}
"""`WeightFormat` of csrc/cpu/gemm.h."""

_PACKED_BYTES_OF_256: dict[GgufType, int] = {
    GgufType.Q4_K: 148,  # sub-scales in whole bytes
    GgufType.Q5_K: 180,
    GgufType.Q3_K: 114,
    GgufType.IQ4_NL: 164,  # these three share one form, with float32 scales
    GgufType.IQ4_XS: 164,
    GgufType.MXFP4: 164,
}
"""Where 256 values take more in memory than in a file."""


class PackedMatrix(instructions.PackedMatrix, Protocol):
    """A native matrix [N, K]."""

    @property
    def format(self) -> int:
        """Its `WeightFormat`."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        ...

    @property
    def data(self) -> ByteView:
        """The packed bytes."""
        ...


class Packer(Protocol):
    """`PackedMatrix.pack` of the native module in use, or `Packing.pack`, which returns at once."""

    def __call__(
        self,
        weight_format: int,
        sources: Sequence[ByteView],
        N: int,
        K: int,
        row_order: RowOrder | None,
        /,
    ) -> PackedMatrix:
        """Pack rows of `K` elements; row n is row row_order[n] of the sources, counted through one after the other."""
        ...


def packed_bytes(kind: GgufType, num_values: int) -> int:
    """Return the bytes that values take in memory, but for the padding of the last panel."""
    if kind in _PACKED_BYTES_OF_256:
        return num_values * _PACKED_BYTES_OF_256[kind] // 256
    return num_values * kind.block_bytes // kind.block_elements


def format_name(weight_format: int) -> str:
    """Return the name of a `WeightFormat`, as GGUF has it."""
    return next(kind.name for kind, number in NATIVE_FORMATS.items() if number == weight_format)


def half_split_row_order(num_rows: int, num_heads: int, field: str, *, rotary_dim: int | None = None) -> RowOrder:
    """Return where a file whose rotation works on neighbours keeps the rows that a half-split one wants in order.

    Such a file interleaves the two halves of each head (rows 2i and 2i + 1 are dims i and i + half), or of its first
    `rotary_dim` rows if only these rotate. Whole rows move, so quantised ones move as they are.
    """
    half, rest = divmod(num_rows, 2 * num_heads)
    if rest:
        raise ModelLoadError(f"{field} has {num_rows} rows, not a multiple of 2 for each of {num_heads} heads")
    rotary_dim = 2 * half if rotary_dim is None else rotary_dim
    order: RowOrder = np.arange(num_rows, dtype=np.int32).reshape(num_heads, 2 * half)
    pairs = order[:, :rotary_dim].reshape(num_heads, -1, 2)
    return np.concatenate([pairs[:, :, 0], pairs[:, :, 1], order[:, rotary_dim:]], axis=1).reshape(-1)
