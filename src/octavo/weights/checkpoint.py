"""One view of a model's tensors, whatever file they are in: stable names, types, bytes, and how rows are ordered.

Nothing is copied until a tensor is asked for.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile, tensor_bytes
from octavo.formats.gguf_quants import dequantize_bytes
from octavo.formats.gguf_types import GgufType
from octavo.formats.mapped_file import ByteView
from octavo.formats.safetensors import SafetensorsTensor
from octavo.program.ops import Program
from octavo.weights.names import check_names, stable_name_from_gguf, stable_name_from_hf, unused_part
from octavo.weights.packing import RowOrder, half_split_row_order, packed_bytes
from octavo.weights.quantize_reference import rounded

if TYPE_CHECKING:
    from octavo.weights.prequantized import Scheme

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

_SAMPLE_BYTES = 64

_SAFETENSORS_TYPES = {"F32": GgufType.F32, "F16": GgufType.F16, "BF16": GgufType.BF16}


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """One tensor of a model's file."""

    type: GgufType
    """How the bytes code numbers; float types serve both kinds of file."""
    shape: tuple[int, ...]
    source: ByteView | Callable[[], ByteView]
    """The bytes, or what makes them."""
    row_order: RowOrder | None = None
    """Row n of the weight is row row_order[n] of the file; None: the same."""
    offset: float = 0.0
    """What is added to every value: 1 for norms stored as w - 1."""
    rounded_type: GgufType | None = None
    """What the values are rounded to while they are packed; None: they keep their bits."""

    @property
    def data(self) -> ByteView:
        """The bytes; made anew each time if they are not in the file as they are."""
        return self.source() if callable(self.source) else self.source

    @property
    def num_bytes(self) -> int:
        """Bytes of `data`, told without making them."""
        return tensor_bytes(self.type, self.shape)

    @property
    def packed_type(self) -> GgufType:
        """How the weight is coded in memory."""
        return self.rounded_type or self.type

    @property
    def packed_bytes(self) -> int:
        """Bytes that the weight takes in memory, but for the padding of its last panel."""
        return packed_bytes(self.packed_type, math.prod(self.shape))

    def check_rows(self, num_rows: int, field: str) -> None:
        """Refuse a tensor that has not that many rows, or no bytes for them, before somebody makes an order of them."""
        if self.shape[:1] != (num_rows,) or 0 in self.shape:
            raise ModelLoadError(f"{field} is {list(self.shape)}, the config makes it {num_rows} rows")

    def values(self) -> Floats:
        """Return the weight as float32: vectors for use, matrices for the oracle."""
        values = dequantize_bytes(self.data, self.type).reshape(self.shape)
        if self.rounded_type is not None:
            values = rounded(values, self.rounded_type)
        if self.row_order is not None:
            values = values[self.row_order]
        return values + np.float32(self.offset) if self.offset else values


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a model by stable name."""

    source: str
    tensors: Mapping[str, CheckpointTensor]

    @property
    def packed_bytes(self) -> int:
        """Bytes that the tensors take in memory, about."""
        return sum(tensor.packed_bytes for tensor in self.tensors.values())

    @property
    def bytes_to_round(self) -> int:
        """Bytes in the file of the tensors that are rounded while they are packed."""
        return sum(tensor.num_bytes for tensor in self.tensors.values() if tensor.rounded_type is not None)

    def identity(self) -> str:
        """Return a hash of each tensor's name, type, shape and two samples; all bytes would be the whole file."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            data = tensor.data
            middle = len(data) // 2
            digest.update(f"{name} {tensor.type.name} {tensor.shape} {len(data)}".encode())
            digest.update(data[:_SAMPLE_BYTES].tobytes())
            digest.update(data[middle : middle + _SAMPLE_BYTES].tobytes())
        return digest.hexdigest()

    def check(self, program: Program) -> None:
        """Compare names and shapes with what the program needs.

        Raises: ModelLoadError that lists missing and unexpected tensors, or names a tensor with a wrong shape.
        """
        needed = {part.name: (part.num_rows, *weight.shape[1:]) for weight in program.weights for part in weight.parts}
        check_names(needed, self.tensors, self.source)
        for name, shape in needed.items():
            tensor = self.tensors[name]
            if tensor.shape != shape:
                raise ModelLoadError(
                    f"{self.source}: tensor {name} is {list(tensor.shape)}, the config makes it {list(shape)}"
                )


def checkpoint_from_safetensors(
    tensors: Mapping[str, SafetensorsTensor], source: str, *, norm_offset: float, scheme: Scheme | None = None
) -> Checkpoint:
    """Rename the tensors of a Hugging Face checkpoint.

    Args:
        norm_offset: added to the weights of all norms.
        scheme: how matrices are quantised, if they are.
    """
    unused = sorted({part for name in tensors if (part := unused_part(name)) is not None})
    if unused:
        logger.warning("%s: only text is supported; tensors of %s are not used", source, ", ".join(unused))
    result: dict[str, CheckpointTensor] = {}
    plain = list(tensors.values())
    if scheme is not None:
        modules, plain = scheme.split(plain)
        result = _quantized_modules(modules, source, scheme)
    for tensor in plain:
        name = stable_name_from_hf(tensor.name)
        if name is None:
            continue
        if tensor.dtype not in _SAFETENSORS_TYPES:
            supported = ", ".join(_SAFETENSORS_TYPES)
            raise ModelLoadError(f"{source}: tensor {tensor.name} is {tensor.dtype}, supported: {supported}")
        if name in result:
            raise ModelLoadError(f"{source}: tensor {name} is there under two names, one of them {tensor.name}")
        offset = norm_offset if name.endswith("norm.weight") else 0.0
        result[name] = CheckpointTensor(_SAFETENSORS_TYPES[tensor.dtype], tensor.shape, tensor.data, offset=offset)
    return Checkpoint(source, result)


def _quantized_modules(
    modules: Mapping[str, Mapping[str, SafetensorsTensor]], source: str, scheme: Scheme
) -> dict[str, CheckpointTensor]:
    from octavo.weights.module_tensors import ModuleTensors  # few checkpoints need this
    from octavo.weights.prequantized import warn_of_floats

    result = {}
    for module, parts in modules.items():
        name = stable_name_from_hf(f"{module}.weight")
        if name is not None:
            weights = scheme.read(ModuleTensors(module, parts, source))
            kind = weights.code_type()
            result[name] = CheckpointTensor(kind, weights.shape, partial(weights.coded, kind))
    warn_of_floats((tensor.type for tensor in result.values()), source)
    return result


def checkpoint_from_gguf(file: GgufFile, *, sandwich: bool, permuted_heads: tuple[int, int] | None) -> Checkpoint:
    """Rename the tensors of a GGUF file.

    `permuted_heads`: the number of heads of q and of k if the file orders their rows for the interleaved rotation.
    """
    source = str(file.path)
    result = {}
    for tensor in file.tensors.values():
        name = stable_name_from_gguf(tensor.name, sandwich=sandwich)
        if name is None:
            continue
        if name in result:
            raise ModelLoadError(f"{source}: tensor {name} is there under two names, one of them {tensor.name}")
        heads = _permuted_heads(name, permuted_heads)
        field = f"{source}: tensor {tensor.name}"
        row_order = half_split_row_order(tensor.shape[0], heads, field) if heads else None
        result[name] = CheckpointTensor(tensor.type, tensor.shape, tensor.data, row_order)
    return Checkpoint(source, result)


def _permuted_heads(name: str, permuted_heads: tuple[int, int] | None) -> int:
    """Return the number of heads whose rows are permuted in a tensor, 0 for none."""
    if permuted_heads is None:
        return 0
    return permuted_heads[0] * (".q_proj." in name) + permuted_heads[1] * (".k_proj." in name)
