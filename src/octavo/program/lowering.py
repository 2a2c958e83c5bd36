"""From a Program to native instructions: the choices that are made once, at load.

- Products with quantised weights read int8 activations. These are made where the value is made, in the norm or gate
  before, if that is where it comes from; the float value is then stored only if somebody else reads it.
- The output of an op takes the memory of its input where the op allows it and nobody reads the input again; a sum is
  made in the product's own output.
- Parts of a split product are columns of one buffer.
- A gate is made in the product that it gates, so that what it gates is never stored.
- Ops with independent rows that follow each other form one stage.
- A mixture of experts becomes a sort of its rows by expert, products of each expert's rows, and a sum per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from octavo.program.instructions import (
    Buffer,
    Instruction,
    LoweredProgram,
    Operand,
    PackedMatrix,
    ProgramWeights,
    Segment,
)
from octavo.program.moe_ops import Moe, Route
from octavo.program.ops import (
    ACTIVATION_GROUP,
    Add,
    CausalConv1d,
    Embedding,
    GatedDeltaRule,
    GatedMul,
    GatherRows,
    KvWrite,
    Linear,
    Mul,
    MulByGate,
    Op,
    PagedAttention,
    Program,
    RmsNorm,
    Rope,
    Rows,
    Scale,
    Softcap,
    Value,
    Weight,
)
from octavo.program.planner import row_stride
from octavo.program.reads import Reads
from octavo.program.rope_table import build_rope_table

ACTIVATION_BLOCK_BYTES = 64
FLOAT_BYTES = 4
FLOATS_PER_LINE = 16
PANEL_COLUMNS = 16
"""Columns of a packed matrix that lie together (csrc/cpu/gemm.h)."""


def lower(program: Program, weights: ProgramWeights, *, activation_quantization: bool) -> LoweredProgram:
    """Choose the instructions of `program` for these weights."""
    return _Lowering(program, weights, activation_quantization).run()


class _Lowering:
    """One walk over the ops; keeps where values are, and the number of the stage that is being written."""

    def __init__(self, program: Program, weights: ProgramWeights, activation_quantization: bool) -> None:
        self._program = program
        self._weights = weights
        self._reads = Reads(program, weights, activation_quantization)
        self._lowered = LoweredProgram()
        self._instructions = self._lowered.body
        self._stage = -1
        self._is_row_stage = False
        self._places: dict[int, Operand] = {}
        self._acts: dict[int, Operand] = {}
        self._rope_tables = {table.name: build_rope_table(table) for table in program.rope_tables}

    def run(self) -> LoweredProgram:
        program, lowered = self._program, self._lowered
        self._lower_all(0, program.body)
        self._instructions, self._is_row_stage = lowered.head, False
        self._lower_all(len(program.body), program.head)
        lowered.logits = self._use(program.logits)
        if program.pooled is not None:
            num_stages = len(lowered.stage_ops)
            self._instructions, self._is_row_stage = lowered.pool, False
            self._lower_all(len(program.body) + len(program.head), program.pool)
            lowered.pooled = self._use(program.pooled)
            del lowered.stage_ops[num_stages:]
        self._use(program.hidden)  # until the end: head and pool run slice by slice, and more than once
        return lowered

    def _lower_all(self, first: int, ops: Sequence[Op]) -> None:
        """Lower ops, numbered from `first` on; a product and the gate after it together, where they may be."""
        index = first
        while index < first + len(ops):
            match ops[index - first : index - first + 2]:
                case (Linear() as op, GatedMul() as gate) if (parts := self._gated_parts(index, op, gate)) is not None:
                    self._gated_linear(op, gate, parts)
                    self._note_stages((index, index + 1))
                    index += 2
                case (op, *_):
                    self._lower(index, op)
                    self._note_stages((index,))
                    index += 1

    def _note_stages(self, ops: tuple[int, ...]) -> None:
        """Count the stages begun for these ops as theirs; if there are none, the present one, of independent rows."""
        noted = self._lowered.stage_ops
        new = self._stage + 1 - len(noted)
        noted.extend([ops] * new)
        if not new:
            noted[-1] += ops

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
            case MulByGate():
                x, y, act = self._norm_or_gate(index, op)
                width, gate_width = op.inputs[0].width, op.inputs[1].width
                g = self._use(op.inputs[1])
                self._emit("mul_by_gate", x=x, g=g, gate=op.gate, width=width, gate_width=gate_width, y=y, act=act)
            case CausalConv1d() | GatedDeltaRule():
                self._state_op(op)
            case Rope():
                self._rope(index, op)
            case Route():
                self._route(op)
            case Moe():
                self._moe(index, op)
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

    def _norm_or_gate(
        self, index: int, op: RmsNorm | GatedMul | MulByGate
    ) -> tuple[Operand, Operand | None, Operand | None]:
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
        segments = self._product_segments(op)
        if any(segment[3] for segment in segments):
            self._quantize(x)
        y = None if op.add_to is None else self._in_place(index, op, op.add_to, value)
        self._start_stage()
        self._emit(
            "gemm",
            **self._product_inputs(x, segments),
            y=self._new_value(value) if y is None else self._touch(y),
            add=y is not None,
            segments=segments,
        )

    def _gated_linear(self, op: Linear, gate: GatedMul, parts: list[Segment]) -> None:
        x, value = op.inputs[0], gate.outputs[0]
        if any(segment[3] for segment in parts):
            self._quantize(x)
        self._start_stage()
        act = self._new_act(value) if value.id in self._reads.quantized else None
        self._emit(
            "gated_gemm",
            **self._product_inputs(x, parts),
            gate=gate.gate,
            width=value.width,
            y=self._new_value(value) if act is None or self._reads.is_read(value) else None,
            y_act=act,
            gate_part=parts[0],
            up_part=parts[1],
        )

    def _gated_parts(self, index: int, op: Linear, gate: GatedMul) -> list[Segment] | None:
        """Return the segments of gate and up, with panels for columns, if op number `index` and its gate can be one."""
        if op.add_to is not None or gate.inputs[0].id != op.outputs[0].id:
            return None
        if not self._reads.is_read_only_by(index + 1, op.outputs[0]):
            return None
        width = gate.outputs[0].width
        parts: list[Segment] = []
        for begin in (0, width):
            for matrix, column, bias, int8 in self._product_segments(op):
                panel, rest = divmod(begin - column, PANEL_COLUMNS)
                left = column + matrix.N - begin - width
                if panel >= 0 and rest == 0 and (left == 0 or (left > 0 and width % PANEL_COLUMNS == 0)):
                    parts.append((matrix, panel, bias, int8))
        return parts if len(parts) == 2 else None

    def _product_segments(self, op: Linear) -> list[Segment]:
        bias = None if op.bias is None else self._weights.vectors[op.bias.name]
        segments: list[Segment] = []
        column = 0
        for matrix in self._weights.matrices[op.weight.name]:
            end = column + matrix.N
            segments.append((matrix, column, None if bias is None else bias[column:end], self._reads.are_int8(matrix)))
            column = end
        return segments

    def _quantize(self, x: Value) -> None:
        """Make activation blocks of a product's input, unless there are some."""
        if x.id not in self._acts:
            self._start_rows()
            floats = self._use(x)
            self._emit("quantize", x=floats, width=x.width, act=self._new_act(x))

    def _product_inputs(self, x: Value, segments: Sequence[Segment]) -> dict[str, Operand | None]:
        int8 = [segment[3] for segment in segments]
        return {
            "x": None if all(int8) else self._use(x),
            "act": self._touch(self._acts[x.id]) if any(int8) else None,
        }

    def _route(self, op: Route) -> None:
        """A router always reads floats: a rounded row would choose other experts."""
        routing = op.routing
        self._start_stage()
        logits = self._new_rows(op.inputs[0].rows, routing.num_experts)
        (segments,) = _expert_segments([self._weights.matrices[op.weights[0].name]], int8=False)
        self._emit("gemm", x=self._use(op.inputs[0]), act=None, y=logits, add=False, segments=segments)
        self._start_rows()
        self._emit(
            "route",
            logits=self._touch(logits),
            choice_bias=None if op.choice_bias is None else self._weights.vectors[op.choice_bias.name],
            **asdict(routing),
            experts=self._new_value(op.outputs[0]),
            weights=self._new_value(op.outputs[1]),
        )

    def _moe(self, index: int, op: Moe) -> None:
        """Sort the rows by expert, run each expert on its own, and add up what belongs to a row."""
        x, value, k = op.inputs[0], op.outputs[0], op.top_k
        width = op.down[0].shape[1]
        up_int8, down_int8 = self._reads.is_int8_stack(op.gate_up), self._reads.is_int8_stack(op.down)
        if up_int8:
            self._quantize(x)
        self._start_stage()
        rows = self._new_act_rows(x.rows, x.width, k) if up_int8 else self._new_rows(x.rows, x.width, k)
        self._emit(
            "moe_sort",
            experts=self._use(op.inputs[1]),
            top_k=k,
            num_experts=op.num_experts,
            x=None if up_int8 else self._use(x),
            act=self._touch(self._acts[x.id]) if up_int8 else None,
            width=x.width,
            sorted_rows=rows,
        )
        rows = self._moe_gemm(op.gate_up, rows, x.rows, k, int8=up_int8)
        self._start_stage()
        gated = self._new_act_rows(x.rows, width, k) if down_int8 else self._new_rows(x.rows, width, k)
        y, act = (None, gated) if down_int8 else (gated, None)
        self._emit("moe_gate", x=self._touch(rows), gate=op.gate, width=width, y=y, act=act)
        rows = self._moe_gemm(op.down, gated, x.rows, k, int8=down_int8)
        self._start_rows()
        add = None if op.add_to is None else self._use(op.add_to)
        if op.add_to is not None and self._reads.may_overwrite(op.add_to, op, index):
            self._places[value.id] = self._use(op.add_to)
        else:
            self._new_value(value)
        weights, out = self._use(op.inputs[2]), self._places[value.id]
        self._emit("moe_combine", x=self._touch(rows), weights=weights, width=value.width, add=add, y=out)

    def _moe_gemm(self, experts: Sequence[Weight], rows: Operand, symbol: Rows, k: int, *, int8: bool) -> Operand:
        """Multiply each expert's rows with its matrix."""
        self._start_stage()
        y = self._new_rows(symbol, experts[0].shape[0], k)
        x, act = (None, self._touch(rows)) if int8 else (self._touch(rows), None)
        stack = (self._weights.matrices[weight.name] for weight in experts)
        self._emit("moe_gemm", x=x, act=act, y=y, experts=_expert_segments(stack, int8=int8))
        return y

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

    def _state_op(self, op: CausalConv1d | GatedDeltaRule) -> None:
        self._start_stage()
        places = [self._use(value) for value in op.inputs]
        vectors = [self._weights.vectors[weight.name] for weight in op.weights]
        out = self._new_value(op.outputs[0])
        layer = {"group": op.cache.group, "layer": op.cache.layer}
        if isinstance(op, CausalConv1d):
            self._emit("causal_conv", x=places[0], weight=vectors[0], **layer, y=out)
            return
        inputs = dict(zip(("qkv", "b", "a", "decay", "dt_bias"), (*places, *vectors), strict=True))
        self._emit("gated_delta", **inputs, tiled_heads=op.tiled_heads, **layer, out=out)

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
                if x.width == value.width and self._reads.may_overwrite(x, op, index):
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
        self._places[value.id] = self._new_rows(value.rows, value.width)
        return self._places[value.id]

    def _new_act(self, value: Value) -> Operand:
        self._acts[value.id] = self._new_act_rows(value.rows, value.width)
        return self._acts[value.id]

    def _new_rows(self, rows: Rows, width: int, per_row: int = 1) -> Operand:
        stride = row_stride(width, element_bytes=FLOAT_BYTES, multiple=FLOATS_PER_LINE)
        return self._new_buffer(rows, stride, FLOAT_BYTES, per_row)

    def _new_act_rows(self, rows: Rows, width: int, per_row: int = 1) -> Operand:
        num_blocks = -(-width // ACTIVATION_GROUP)
        stride = row_stride(num_blocks, element_bytes=ACTIVATION_BLOCK_BYTES, multiple=1)
        return self._new_buffer(rows, stride, ACTIVATION_BLOCK_BYTES, per_row)

    def _new_buffer(self, rows: Rows, stride: int, element_bytes: int, per_row: int) -> Operand:
        self._lowered.buffers.append(Buffer(rows, stride, element_bytes, self._stage, self._stage, per_row))
        return Operand(len(self._lowered.buffers) - 1)


def _expert_segments(stack: Iterable[Sequence[PackedMatrix]], *, int8: bool) -> list[list[Segment]]:
    """Return for each weight its matrices, and the column of the output where each begins."""
    segments: list[list[Segment]] = []
    for matrices in stack:
        columns = accumulate((matrix.N for matrix in matrices), initial=0)
        segments.append([(matrix, column, None, int8) for matrix, column in zip(matrices, columns, strict=False)])
    return segments
