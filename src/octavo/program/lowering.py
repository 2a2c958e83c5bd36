"""From a Program to native instructions: the choices that are made once, at load.

- Products with quantised weights read int8 activations. These are made where the value is made, in the norm or gate
  before, if that is where it comes from; the float value is then stored only if somebody else reads it.
- The output of an op takes the memory of its input where the op allows it and nobody reads the input again; a sum is
  made in the product's own output.
- Parts of a split product are columns of one buffer.
- Ops with independent rows that follow each other form one stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.program.ops import (
    ACTIVATION_GROUP,
    Add,
    Embedding,
    GatedMul,
    GatherRows,
    KvWrite,
    Linear,
    Mul,
    Op,
    PagedAttention,
    Program,
    RmsNorm,
    Rope,
    Rows,
    Scale,
    Softcap,
    Value,
)
from octavo.program.planner import row_stride
from octavo.program.rope_table import build_rope_table

ACTIVATION_BLOCK_BYTES = 64
FLOAT_BYTES = 4
FLOATS_PER_LINE = 16


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
    """Instructions of the body and the head in order, and the buffers they use."""

    body: list[Instruction] = field(default_factory=list)
    head: list[Instruction] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    logits: Operand = Operand(-1)


def lower(program: Program, weights: ProgramWeights, *, activation_quantization: bool) -> LoweredProgram:
    """Choose the instructions of `program` for these weights."""
    return _Lowering(program, weights, activation_quantization).run()


class _Reads:
    """Who reads each value, by index of op over body and head."""

    def __init__(self, program: Program, weights: ProgramWeights, activation_quantization: bool) -> None:
        self._activation_quantization = activation_quantization
        self._last: dict[int, int] = {}
        """Per value, the last op that reads its floats."""
        self._views: dict[int, list[int]] = {}
        """Per value, its views."""
        self.quantized: set[int] = set()
        """Values that some product reads as int8."""
        made_quantized: set[int] = set()
        """Values that the op which makes them can quantise."""
        for value in program.values:
            if value.base is not None:
                self._views.setdefault(value.base, []).append(value.id)
        for index, op in enumerate((*program.body, *program.head)):
            for position, value in enumerate(op.inputs):
                int8 = [False]
                if isinstance(op, Linear) and position == 0:
                    int8 = [self.are_int8(segment) for segment in weights.matrices[op.weight.name]]
                if any(int8):
                    self.quantized.add(value.id)
                if not all(int8) or value.id not in made_quantized:
                    self._last[value.id] = index
            if isinstance(op, (RmsNorm, GatedMul)):
                made_quantized.add(op.outputs[0].id)
        self._last[program.logits.id] = len(program.body) + len(program.head)

    def are_int8(self, segment: PackedMatrix) -> bool:
        """Whether a product with this matrix reads int8 activations."""
        return self._activation_quantization and segment.is_quantized

    def is_read(self, value: Value) -> bool:
        """Whether anybody reads the floats of a value or of its views."""
        return self._last_read(value) >= 0

    def may_overwrite(self, value: Value, op: Op, index: int) -> bool:
        """Whether op number `index` is the last to read these columns, and reads them as one input only."""
        others = [other for other in op.inputs if _overlap(other, value)]
        return len(others) == 1 and self._last_read(value) <= index

    def _last_read(self, value: Value) -> int:
        related = [value.id, *self._views.get(value.id, ())]
        if value.base is not None:
            related.append(value.base)
        return max(self._last.get(other, -1) for other in related)


def _overlap(a: Value, b: Value) -> bool:
    return a.id == b.id or a.base == b.id or b.base == a.id


class _Lowering:
    """One walk over the ops; keeps where values are, and the number of the stage that is being written."""

    def __init__(self, program: Program, weights: ProgramWeights, activation_quantization: bool) -> None:
        self._program = program
        self._weights = weights
        self._reads = _Reads(program, weights, activation_quantization)
        self._lowered = LoweredProgram()
        self._instructions = self._lowered.body
        self._stage = -1
        self._is_row_stage = False
        self._places: dict[int, Operand] = {}
        self._acts: dict[int, Operand] = {}
        self._rope_tables = {table.name: build_rope_table(table) for table in program.rope_tables}

    def run(self) -> LoweredProgram:
        for index, op in enumerate(self._program.body):
            self._lower(index, op)
        self._instructions, self._is_row_stage = self._lowered.head, False
        for index, op in enumerate(self._program.head, start=len(self._program.body)):
            self._lower(index, op)
        self._lowered.logits = self._use(self._program.logits)
        self._use(self._program.hidden)  # until the end: the head runs slice by slice, and more than once
        return self._lowered

    def _lower(self, index: int, op: Op) -> None:
        match op:
            case Linear():
                self._linear(index, op)
            case PagedAttention():
                self._attention(op)
            case RmsNorm():
                x, y, act = self._norm_or_gate(index, op)
                weight = self._weights.vectors[op.weights[0].name]
                self._emit("rms_norm", x=x, weight=weight, heads=op.heads, eps=op.eps, y=y, act=act)
            case GatedMul():
                x, y, act = self._norm_or_gate(index, op)
                self._emit("gated_mul", x=x, gate=op.gate, width=op.outputs[0].width, y=y, act=act)
            case Rope():
                self._rope(index, op)
            case _:
                self._row_op(index, op)

    def _row_op(self, index: int, op: Op) -> None:
        self._start_rows()
        x = [self._use(value) for value in op.inputs]
        if isinstance(op, KvWrite):
            self._emit("kv_write", k=x[0], v=x[1], group=op.cache.group, layer=op.cache.layer)
            return
        width = op.outputs[0].width
        y = self._output(index, op)
        match op:
            case Embedding():
                (table,) = self._weights.matrices[op.weights[0].name]
                self._emit("embedding", table=table, scale=op.scale, y=y)
            case Add():
                self._emit("add", a=x[0], b=x[1], width=width, y=y)
            case Mul():
                self._emit("mul", a=x[0], b=x[1], width=width, y=y)
            case Scale():
                self._emit("scale", x=x[0], factor=op.factor, width=width, y=y)
            case Softcap():
                self._emit("softcap", x=x[0], cap=op.cap, width=width, y=y)
            case GatherRows():
                self._emit("gather_rows", x=x[0], width=width, y=y)
            case _:
                raise NotImplementedError(f"the native executor has no {op.kind}")

    def _norm_or_gate(self, index: int, op: RmsNorm | GatedMul) -> tuple[Operand, Operand | None, Operand | None]:
        """Return the input, and the outputs that somebody reads: floats, activation blocks."""
        self._start_rows()
        value = op.outputs[0]
        x = self._use(op.inputs[0])
        act = self._new_act(value) if value.id in self._reads.quantized else None
        y = self._output(index, op) if act is None or self._reads.is_read(value) else None
        return x, y, act

    def _rope(self, index: int, op: Rope) -> None:
        self._start_rows()
        table = self._rope_tables[op.table.name]
        for x, y in zip(op.inputs, op.outputs, strict=True):
            place = self._in_place(index, op, x, y)
            heads = x.width // op.head_dim
            self._emit("rope", x=place, table=table, heads=heads, head_dim=op.head_dim, interleaved=op.interleaved)

    def _linear(self, index: int, op: Linear) -> None:
        x, value = op.inputs[0], op.outputs[0]
        bias = None if op.bias is None else self._weights.vectors[op.bias.name]
        segments = []
        column = 0
        for matrix in self._weights.matrices[op.weight.name]:
            end = column + matrix.N
            segments.append((matrix, column, None if bias is None else bias[column:end], self._reads.are_int8(matrix)))
            column = end
        int8 = [segment[3] for segment in segments]
        if any(int8) and x.id not in self._acts:
            self._start_rows()
            floats = self._use(x)
            self._emit("quantize", x=floats, width=x.width, act=self._new_act(x))
        y = None if op.add_to is None else self._in_place(index, op, op.add_to, value)
        self._start_stage()
        self._emit(
            "gemm",
            x=None if all(int8) else self._use(x),
            act=self._touch(self._acts[x.id]) if any(int8) else None,
            y=self._new_value(value) if y is None else self._touch(y),
            add=y is not None,
            segments=segments,
        )

    def _attention(self, op: PagedAttention) -> None:
        self._start_stage()
        self._emit(
            "attention",
            q=self._use(op.inputs[0]),
            out=self._new_value(op.outputs[0]),
            group=op.cache.group,
            layer=op.cache.layer,
            num_heads=op.num_heads,
            scale=op.scale,
            window=op.window or 0,
            softcap=op.softcap or 0.0,
        )

    def _emit(self, method: str, **arguments: Any) -> None:
        self._instructions.append(Instruction(method, arguments))

    def _start_rows(self) -> None:
        """Stay in a stage of independent rows, or begin one."""
        if not self._is_row_stage:
            self._stage += 1
            self._is_row_stage = True
            self._emit("start_rows")

    def _start_stage(self) -> None:
        """Begin the stage of a product or an attention."""
        self._stage += 1
        self._is_row_stage = False

    def _output(self, index: int, op: Op) -> Operand:
        """Give the output of an op its place: that of an input whose last reader this op is, or a new one."""
        value = op.outputs[0]
        if op.in_place:
            for x in op.inputs:
                if self._reads.may_overwrite(x, op, index):
                    self._places[value.id] = self._use(x)
                    return self._places[value.id]
        return self._new_value(value)

    def _in_place(self, index: int, op: Op, x: Value, y: Value) -> Operand:
        """Give y the place and content of x, for an op that works in place: by copying if x is still needed."""
        if self._reads.may_overwrite(x, op, index):
            self._places[y.id] = self._use(x)
        else:
            self._start_rows()
            source = self._use(x)
            self._emit("copy", x=source, width=x.width, y=self._new_value(y))
        return self._places[y.id]

    def _use(self, value: Value) -> Operand:
        """Return the place of a value that exists, used by the present stage."""
        if value.base is None or value.id in self._places:
            return self._touch(self._places[value.id])
        base = self._places[value.base]
        return self._touch(Operand(base.buffer, base.column + value.column))

    def _touch(self, operand: Operand) -> Operand:
        self._lowered.buffers[operand.buffer].last = self._stage
        return operand

    def _new_value(self, value: Value) -> Operand:
        stride = row_stride(value.width, element_bytes=FLOAT_BYTES, multiple=FLOATS_PER_LINE)
        self._places[value.id] = self._new_buffer(value.rows, stride, FLOAT_BYTES)
        return self._places[value.id]

    def _new_act(self, value: Value) -> Operand:
        num_blocks = -(-value.width // ACTIVATION_GROUP)
        stride = row_stride(num_blocks, element_bytes=ACTIVATION_BLOCK_BYTES, multiple=1)
        self._acts[value.id] = self._new_buffer(value.rows, stride, ACTIVATION_BLOCK_BYTES)
        return self._acts[value.id]

    def _new_buffer(self, rows: Rows, stride: int, element_bytes: int) -> Operand:
        self._lowered.buffers.append(Buffer(rows, stride, element_bytes, self._stage, self._stage))
        return Operand(len(self._lowered.buffers) - 1)
