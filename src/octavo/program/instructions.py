"""What a Program is lowered to: instructions over operands in buffers, and what lowering must know of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.program.ops import Rows


class PackedMatrix(Protocol):
    """A native matrix [N, K]."""

    @property
    def N(self) -> int:
        """Rows of the weight, columns of a product."""
        ...

    @property
    def is_quantized(self) -> bool:
        """Whether products with it can read int8 activations; else they read floats."""
        ...


Segment = tuple[PackedMatrix, int, npt.NDArray[np.float32] | None, bool]
"""Of a product: matrix, first column of the output, bias, whether it reads int8 activations."""


class ProgramWeights(Protocol):
    """The weights of a program by name; `weights.store.WeightStore` is one."""

    @property
    def matrices(self) -> Mapping[str, Sequence[PackedMatrix]]:
        """Per matrix its segments, stacked along N. Their formats may differ."""
        ...

    @property
    def vectors(self) -> Mapping[str, npt.NDArray[np.float32]]:
        """Norm weights and biases."""
        ...


@dataclass(slots=True)
class Buffer:
    """Memory for the rows of a value and its views, or for activation blocks."""

    rows: Rows
    stride: int
    """Elements from one row to the next."""
    element_bytes: int
    first: int
    """Stage that first uses it."""
    last: int
    """Stage that last uses it."""
    per_row: int = 1
    """Rows of memory for each row: an expert's input has one for each of the experts that a row takes."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Columns of a buffer, from `column` on."""

    buffer: int
    column: int = 0


@dataclass(frozen=True, slots=True)
class Instruction:
    """A call of a method of the native program; arguments that are an `Operand` become places in the arena."""

    method: str
    arguments: dict[str, Any]


@dataclass(slots=True)
class LoweredProgram:
    """Instructions of body, head and pool in order, and the buffers they use."""

    body: list[Instruction] = field(default_factory=list)
    head: list[Instruction] = field(default_factory=list)
    pool: list[Instruction] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    stage_ops: list[tuple[int, ...]] = field(default_factory=list)
    """Per stage of body and head, the ops that it computes, by index over both; an op may have several stages."""
    logits: Operand = Operand(-1)
    pooled: Operand | None = None
