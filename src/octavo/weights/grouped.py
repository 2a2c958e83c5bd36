"""Integers with a scale and a zero point per group, as quantised checkpoints have them, in the codes that kernels read.

Every value stays what it was. Codes with a float16 scale for each 32 neighbours exist (Q4_0, Q4_Z, Q8_0); weights that
fit none of them become float32, which holds them exactly too and takes four to eight times the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.formats.gguf_types import GgufType
from octavo.formats.mapped_file import ByteView

Codes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

_BLOCK = 32
"""Values that share a scale in all three codes."""


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """A matrix: w[n, k] = scales[n, g] * (codes[n, k] - zero_points[n, g]), with g the group of k."""

    shape: tuple[int, int]
    bits: int
    codes: Callable[[], Codes]
    """Makes [N, K], below 2^bits. Called when the matrix is packed, so that only one at a time is in memory."""
    scales: Floats
    """[N, G]"""
    zero_points: npt.NDArray[np.int16]
    """[N, G]"""
    group_size: int
    groups: npt.NDArray[np.int32] | None = None
    """[K] if not k // group_size."""

    def code_type(self) -> GgufType:
        """Return the code that holds every value."""
        with np.errstate(over="ignore"):
            has_half_scales = np.array_equal(self.scales.astype(np.float16).astype(np.float32), self.scales)
        has_whole_blocks = self.shape[1] % _BLOCK == 0 and self.group_size % _BLOCK == 0
        if self.groups is not None or not has_half_scales or not has_whole_blocks:
            return GgufType.F32
        is_symmetric = bool((self.zero_points == 1 << (self.bits - 1)).all())
        if self.bits == 8:
            return GgufType.Q8_0 if is_symmetric else GgufType.F32
        return GgufType.Q4_0 if is_symmetric else GgufType.Q4_Z

    def coded(self, kind: GgufType) -> ByteView:
        """Return the matrix as rows of `kind`, which is `code_type()`."""
        codes = self.codes()
        if kind is GgufType.F32:
            return self._values(codes).reshape(-1).view(np.uint8)
        num_rows, width = self.shape
        group = np.arange(0, width, _BLOCK) // self.group_size
        blocks = np.empty((num_rows, len(group), kind.block_bytes), np.uint8)
        blocks[:, :, :2] = _half_bytes(self.scales[:, group])
        if kind is GgufType.Q8_0:
            blocks[:, :, 2:] = (codes ^ np.uint8(0x80)).reshape(num_rows, -1, _BLOCK)
            return blocks.reshape(-1)
        if kind is GgufType.Q4_Z:
            blocks[:, :, 2:4] = _half_bytes(-self.zero_points[:, group])
        halves = codes.reshape(num_rows, -1, 2, _BLOCK // 2)
        blocks[:, :, -_BLOCK // 2 :] = halves[:, :, 0] | halves[:, :, 1] << 4
        return blocks.reshape(-1)

    def _values(self, codes: Codes) -> Floats:
        groups = np.arange(self.shape[1]) // self.group_size if self.groups is None else self.groups
        values: Floats = codes.astype(np.float32)
        values -= self.zero_points[:, groups]
        values *= self.scales[:, groups]
        return values


def _half_bytes(numbers: npt.NDArray[np.float32] | npt.NDArray[np.int16]) -> ByteView:
    """Return numbers [N, B] as the bytes of float16 [N, B, 2]."""
    return np.ascontiguousarray(numbers.astype("<f2")).view(np.uint8).reshape(*numbers.shape, 2)


def unpack(words: Words, bits: int) -> Codes:
    """Return the codes of 32-bit words [A, B] as [A, B * 32 / bits], the lowest bits first."""
    packed = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return packed
    codes = np.empty((len(packed), 2 * packed.shape[1]), np.uint8)
    codes[:, 0::2] = packed & 15
    codes[:, 1::2] = packed >> 4
    return codes
