"""Rounds the matrices of a checkpoint at load, one after the other, or takes them from the cache of an earlier start.

The work is native and shared between threads. Beside the result it takes a panel of 16 rows for each thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from octavo.errors import ModelLoadError
from octavo.formats.gguf_quants import dequantize_bytes
from octavo.formats.mapped_file import ByteView
from octavo.weights.checkpoint import CheckpointTensor
from octavo.weights.packing import NATIVE_FORMATS, PackedMatrix, RowOrder
from octavo.weights.quantized_cache import QuantizedCache

_LARGEST = 65504.0
"""kMostWeight of csrc/cpu/quantize_weights.h."""
_SCAN_BYTES = 1 << 22


class NativeMatrices(Protocol):
    """`PackedMatrix` of the native module in use."""

    def quantize(
        self,
        weight_format: int,
        source_format: int,
        sources: Sequence[ByteView],
        N: int,
        K: int,
        row_order: RowOrder | None,
        num_threads: int,
        /,
    ) -> PackedMatrix:
        """Pack rows of floats, rounded. ValueError if one holds a value that cannot be."""
        ...

    def restore(self, weight_format: int, data: ByteView, N: int, K: int, num_threads: int, /) -> PackedMatrix:
        """Return the matrix that had this data."""
        ...


class WeightQuantizer:
    """Makes the rounded matrices of one model.

    Args:
        cache: where they may be already.
        advance: called with the bytes of the file that have been dealt with.
    """

    def __init__(
        self,
        native: NativeMatrices,
        *,
        num_threads: int,
        cache: QuantizedCache | None = None,
        advance: Callable[[int], object] = lambda _num_bytes: None,
    ) -> None:
        self._native = native
        self._num_threads = num_threads
        self._cache = cache
        self._advance = advance
        self._matrices: dict[str, PackedMatrix] = {}
        self._is_cached = True

    def __call__(
        self, name: str, tensors: Mapping[str, CheckpointTensor], shape: tuple[int, int], row_order: RowOrder | None
    ) -> PackedMatrix:
        """Return the matrix of tensors of one type, stacked. `name` is the matrix's alone.

        Raises: ModelLoadError that names a tensor with a value which cannot be rounded.
        """
        matrix = self._restored(name, tensors, shape)
        if matrix is None:
            self._is_cached = False
            matrix = self._quantized(tensors, shape, row_order)
        self._matrices[name] = matrix
        self._advance(sum(tensor.num_bytes for tensor in tensors.values()))
        return matrix

    def keep(self) -> None:
        """Write all matrices to the cache, if there is one that does not have them."""
        if self._cache is not None and not self._is_cached:
            self._cache.write({name: matrix.data for name, matrix in self._matrices.items()})

    def _restored(
        self, name: str, tensors: Mapping[str, CheckpointTensor], shape: tuple[int, int]
    ) -> PackedMatrix | None:
        data = self._cache.read(name) if self._cache is not None else None
        if data is None:
            return None
        try:
            return self._native.restore(_packed_format(tensors), data, *shape, self._num_threads)
        except ValueError:  # of another size
            return None

    def _quantized(
        self, tensors: Mapping[str, CheckpointTensor], shape: tuple[int, int], row_order: RowOrder | None
    ) -> PackedMatrix:
        (source_type,) = {tensor.type for tensor in tensors.values()}
        sources = [tensor.data for tensor in tensors.values()]
        formats = _packed_format(tensors), NATIVE_FORMATS[source_type]
        try:
            return self._native.quantize(*formats, sources, *shape, row_order, self._num_threads)
        except ValueError:
            for name, tensor in tensors.items():
                _check_values(name, tensor)
            raise


def _packed_format(tensors: Mapping[str, CheckpointTensor]) -> int:
    (packed_type,) = {tensor.packed_type for tensor in tensors.values()}
    return NATIVE_FORMATS[packed_type]


def _check_values(name: str, tensor: CheckpointTensor) -> None:
    """Find a value that no float16 scale can stand for, reading the tensor in pieces."""
    size, data = tensor.type.block_bytes, tensor.data
    step = _SCAN_BYTES // size * size
    for start in range(0, data.nbytes, step):
        values = dequantize_bytes(data[start : start + step], tensor.type)
        unfit = np.flatnonzero(~(np.abs(values) <= _LARGEST))
        if len(unfit):
            row, column = divmod(start // size + int(unfit[0]), tensor.shape[1])
            raise ModelLoadError(
                f"tensor {name}: element [{row}, {column}] is {values[unfit[0]]}, which cannot be quantised: only"
                f" finite values of at most {_LARGEST:g} can. The file is damaged, or its training diverged."
            )
