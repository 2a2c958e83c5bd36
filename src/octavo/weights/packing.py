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
}
"""`WeightFormat` of csrc/cpu/gemm.h."""


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
    """`PackedMatrix.pack` of the native module in use."""

    def __call__(
        self,
        weight_format: int,
        sources: Sequence[ByteView],
        N: int,
        K: int,
        row_order: RowOrder | None,
        num_threads: int,
        /,
    ) -> PackedMatrix:
        """Pack rows of `K` elements; row n is row row_order[n] of the sources, counted through one after the other."""
        ...


def format_name(weight_format: int) -> str:
    """Return the name of a `WeightFormat`, as GGUF has it."""
    return next(kind.name for kind, number in NATIVE_FORMATS.items() if number == weight_format)


def half_split_row_order(num_rows: int, num_heads: int, field: str) -> RowOrder:
    """Return where a GGUF of the llama family keeps the rows that a half-split rotation wants in order.

    Such a file interleaves the two halves of each head (rows 2i and 2i + 1 are dims i and i + half), so that its
    rotation can work on neighbours. Whole rows move, so quantised ones move as they are.
    """
    half, rest = divmod(num_rows, 2 * num_heads)
    if rest:
        raise ModelLoadError(f"{field} has {num_rows} rows, not a multiple of 2 for each of {num_heads} heads")
    order: RowOrder = np.arange(num_rows, dtype=np.int32).reshape(num_heads, half, 2).swapaxes(1, 2).reshape(-1)
    return order
