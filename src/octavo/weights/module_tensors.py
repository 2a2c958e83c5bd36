"""The tensors that a quantised module has in place of its weight, read as each tool packs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelLoadError
from octavo.formats.gguf_quants import dequantize_bytes
from octavo.formats.gguf_types import GgufType
from octavo.formats.safetensors import SafetensorsTensor
from octavo.weights.grouped import Codes, Floats, GroupedWeights, Words, unpack

_FLOAT_TYPES = {"F32": GgufType.F32, "F16": GgufType.F16, "BF16": GgufType.BF16}
_INTEGER_TYPES: Mapping[str, npt.DTypeLike] = {"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight neighbouring columns is in a word."""

Zeros = npt.NDArray[np.int16]


class ModuleTensors:
    """The tensors of one module, by the last part of their names."""

    def __init__(self, name: str, tensors: Mapping[str, SafetensorsTensor], source: str) -> None:
        self.name = name
        self._tensors = tensors
        self._source = source

    def has(self, part: str) -> bool:
        """Whether the module has this tensor."""
        return part in self._tensors

    def fail(self, part: str, problem: str) -> NoReturn:
        """Raise the error that every tensor which does not fit ends in."""
        raise ModelLoadError(f"{self._source}: tensor {self.name}.{part} {problem}")

    def words(self, part: str) -> Words:
        """Return packed codes [A, B]."""
        tensor = self._tensor(part, 2)
        if tensor.dtype != "I32":
            self.fail(part, f"is {tensor.dtype}, expected I32")
        return tensor.data.view("<i4").reshape(tensor.shape)

    def signed_bytes(self, part: str) -> Codes:
        """Return codes [A, B] of 8 bits with a sign, as the bytes that they are."""
        tensor = self._tensor(part, 2)
        if tensor.dtype != "I8":
            self.fail(part, f"is {tensor.dtype}, expected I8")
        return tensor.data.reshape(tensor.shape)

    def floats(self, part: str) -> Floats:
        """Return numbers, as float32."""
        tensor = self._tensor(part)
        if tensor.dtype not in _FLOAT_TYPES:
            self.fail(part, f"is {tensor.dtype}, expected one of {', '.join(_FLOAT_TYPES)}")
        return dequantize_bytes(tensor.data, _FLOAT_TYPES[tensor.dtype]).reshape(tensor.shape)

    def integers(self, part: str) -> npt.NDArray[np.int64]:
        """Return integers that are not packed."""
        tensor = self._tensor(part)
        if tensor.dtype not in _INTEGER_TYPES:
            self.fail(part, f"is {tensor.dtype}, expected one of {', '.join(_INTEGER_TYPES)}")
        return tensor.data.view(_INTEGER_TYPES[tensor.dtype]).reshape(tensor.shape).astype(np.int64)

    def is_packed(self, part: str) -> bool:
        """Whether a tensor is of 32-bit words."""
        return self._tensor(part).dtype == "I32"

    def shape(self, part: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._tensor(part).shape

    def check_shape(self, part: str, expected: tuple[int, ...]) -> None:
        """Refuse a tensor of another shape."""
        shape = self._tensor(part).shape
        if shape != expected:
            self.fail(part, f"is {list(shape)}, the others make it {list(expected)}")

    def _tensor(self, part: str, num_dims: int | None = None) -> SafetensorsTensor:
        tensor = self._tensors.get(part)
        if tensor is None:
            self.fail(part, "is missing, though the module is quantised")
        if num_dims is not None and len(tensor.shape) != num_dims:
            self.fail(part, f"is {list(tensor.shape)}, expected {num_dims} dimensions")
        if 0 in tensor.shape:
            self.fail(part, f"is {list(tensor.shape)}: empty")
        return tensor


def read_gptq(module: ModuleTensors, bits: int, group_size: int, added: int) -> GroupedWeights:
    """Read qweight [K / P, N], qzeros [G, N / P], scales [G, N] and g_idx [K], with P codes in a word.

    `added`: what is added to the zero points of the file.
    """
    per_word = 32 // bits
    qweight = module.words("qweight")
    width, num_rows = per_word * qweight.shape[0], qweight.shape[1]
    group_size = width if group_size == -1 else group_size
    num_groups = -(-width // group_size)
    if num_rows % per_word:
        module.fail("qweight", f"is {list(qweight.shape)}: the second number must be a multiple of {per_word}")
    module.check_shape("scales", (num_groups, num_rows))
    module.check_shape("qzeros", (num_groups, num_rows // per_word))
    zero_points = (unpack(module.words("qzeros"), bits) + np.uint8(added)) & np.uint8((1 << bits) - 1)
    return GroupedWeights(
        shape=(num_rows, width),
        bits=bits,
        codes=lambda: unpack(qweight.T, bits),
        scales=np.ascontiguousarray(module.floats("scales").T),
        zero_points=zero_points.T.astype(np.int16),
        group_size=group_size,
        groups=_groups(module, "g_idx", width, group_size, num_groups),
    )


def read_awq(module: ModuleTensors, group_size: int) -> GroupedWeights:
    """Read qweight [K, N / 8], qzeros [G, N / 8] and scales [G, N]; the columns of a word are interleaved."""
    qweight = module.words("qweight")
    width, num_rows = qweight.shape[0], 8 * qweight.shape[1]
    group_size = width if group_size == -1 else group_size
    num_groups = -(-width // group_size)
    module.check_shape("scales", (num_groups, num_rows))
    if module.has("qzeros"):
        module.check_shape("qzeros", (num_groups, num_rows // 8))
        zero_points = _awq_rows(module.words("qzeros")).astype(np.int16)
    else:
        zero_points = np.full((num_rows, num_groups), 8, np.int16)
    return GroupedWeights(
        shape=(num_rows, width),
        bits=4,
        codes=lambda: _awq_rows(qweight),
        scales=np.ascontiguousarray(module.floats("scales").T),
        zero_points=zero_points,
        group_size=group_size,
    )


def _awq_rows(words: Words) -> Codes:
    """Return the codes of words [A, N / 8] as [N, A]."""
    columns = np.ascontiguousarray(words.T)
    codes = np.empty((len(columns), 8, len(words)), np.uint8)
    for column, place in enumerate(_AWQ_PLACES):
        codes[:, column] = (columns >> (4 * place)) & 15
    return codes.reshape(-1, len(words))


def read_compressed(module: ModuleTensors) -> GroupedWeights:
    """Read weight [N, K] in int8, or weight_packed [N, ceil(K / P)] beside weight_shape.

    There is a scale for each group, row or matrix.
    """
    if module.has("weight_packed"):
        words = module.words("weight_packed")
        num_rows, width = _compressed_shape(module, words.shape)
        bits = 4 if words.shape[1] == -(-width // 8) else 8
        if words.shape[1] != -(-width * bits // 32):
            module.fail("weight_packed", f"is {list(words.shape)}, which is neither 4 nor 8 bits for {width} columns")

        def codes() -> Codes:
            return np.ascontiguousarray(unpack(words, bits)[:, :width])

    else:
        signed = module.signed_bytes("weight")
        num_rows, width = signed.shape
        bits = 8

        def codes() -> Codes:
            unsigned: Codes = signed ^ np.uint8(0x80)
            return unsigned

    scales = _per_group(module.floats("weight_scale"), num_rows)
    if scales is None or width % scales.shape[1]:
        shape = list(module.shape("weight_scale"))
        module.fail("weight_scale", f"is {shape}, expected [{num_rows}, G] with {width} a multiple of G")
    num_groups = scales.shape[1]
    group_size = width // num_groups
    return GroupedWeights(
        shape=(num_rows, width),
        bits=bits,
        codes=codes,
        scales=scales,
        zero_points=_compressed_zero_points(module, bits, num_rows, num_groups),
        group_size=group_size,
        groups=_groups(module, "weight_g_idx", width, group_size, num_groups),
    )


def _compressed_shape(module: ModuleTensors, packed: tuple[int, ...]) -> tuple[int, int]:
    shape = module.integers("weight_shape").reshape(-1).tolist()
    if len(shape) != 2 or shape[0] != packed[0] or not 1 <= shape[1] <= 8 * packed[1]:
        module.fail("weight_shape", f"says {shape[:4]}, which does not fit weight_packed {list(packed)}")
    return shape[0], shape[1]


def _per_group(numbers: npt.NDArray[np.float32], num_rows: int) -> Floats | None:
    """Return numbers of a matrix, of rows or of groups as [N, G]."""
    if numbers.size == 1:
        return np.full((num_rows, 1), numbers.reshape(-1)[0], np.float32)
    numbers = numbers.reshape(num_rows, -1) if len(numbers.shape) == 1 and len(numbers) == num_rows else numbers
    return numbers if len(numbers.shape) == 2 and len(numbers) == num_rows else None


def _compressed_zero_points(module: ModuleTensors, bits: int, num_rows: int, num_groups: int) -> Zeros:
    """Return zero points of unsigned codes; the file's are signed, and packed along the rows if they are words."""
    middle = 1 << (bits - 1)
    part = "weight_zero_point"
    if not module.has(part):
        return np.full((num_rows, num_groups), middle, np.int16)
    if module.is_packed(part):
        module.check_shape(part, (-(-num_rows * bits // 32), num_groups))
        unsigned: Zeros = unpack(module.words(part).T, bits)[:, :num_rows].T.astype(np.int16)
        return unsigned
    signed = module.integers(part)
    if signed.size == 1:
        signed = np.broadcast_to(signed.reshape(1, 1), (num_rows, num_groups))
    if signed.size != num_rows * num_groups or not (np.abs(signed) <= middle).all():
        module.fail(part, f"is {list(module.shape(part))}, expected {num_rows * num_groups} numbers of {bits} bits")
    zero_points: Zeros = (signed.reshape(num_rows, num_groups) + middle).astype(np.int16)
    return zero_points


def _groups(
    module: ModuleTensors, part: str, width: int, group_size: int, num_groups: int
) -> npt.NDArray[np.int32] | None:
    """Return the group of each column, None if they are runs."""
    if not module.has(part):
        return None
    module.check_shape(part, (width,))
    groups = module.integers(part)
    if (groups == -1).all() or np.array_equal(groups, np.arange(width) // group_size):
        return None
    if groups.min() < 0 or groups.max() >= num_groups:
        module.fail(part, f"has groups from {groups.min()} to {groups.max()}, but there are {num_groups}")
    return groups.astype(np.int32)
