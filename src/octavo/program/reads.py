"""Who reads each value of a Program, as floats or as int8: what decides where a value lives and how it is made."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.program.instructions import PackedMatrix, ProgramWeights
from octavo.program.moe_ops import Moe
from octavo.program.ops import GatedMul, Linear, MulByGate, Op, Program, RmsNorm, Value, Weight


class Reads:
    """Who reads each value, by index of op over body, head and pool."""

    def __init__(self, program: Program, weights: ProgramWeights, activation_quantization: bool) -> None:
        self._activation_quantization = activation_quantization
        self._matrices = weights.matrices
        self._last: dict[int, int] = {}
        """Per value, the last op that reads its floats."""
        self._readers: dict[int, list[int]] = {}
        """Per value, the ops that read it."""
        self._views: dict[int, list[int]] = {}
        """Per value, its views."""
        self.quantized: set[int] = set()
        """Values that some product reads as int8."""
        made_quantized: set[int] = set()
        """Values that the op which makes them can quantise."""
        for value in program.values:
            if value.base is not None:
                self._views.setdefault(value.base, []).append(value.id)
        ops = (*program.body, *program.head, *program.pool)
        for index, op in enumerate(ops):
            for position, value in enumerate(op.inputs):
                self._readers.setdefault(value.id, []).append(index)
                int8 = [False]
                if isinstance(op, Linear) and position == 0:
                    int8 = [self.are_int8(segment) for segment in weights.matrices[op.weight.name]]
                elif isinstance(op, Moe) and position == 0:
                    int8 = [self.is_int8_stack(op.gate_up)]
                if any(int8):
                    self.quantized.add(value.id)
                if not all(int8) or value.id not in made_quantized:
                    self._last[value.id] = index
            if isinstance(op, (RmsNorm, GatedMul, MulByGate)):
                made_quantized.add(op.outputs[0].id)
        for result in (program.logits, program.pooled):
            if result is not None:
                self._last[result.id] = len(ops)

    def are_int8(self, segment: PackedMatrix) -> bool:
        """Whether a product with this matrix reads int8 activations."""
        return self._activation_quantization and segment.is_quantized

    def is_int8_stack(self, experts: Sequence[Weight]) -> bool:
        """Whether the products with these matrices of all experts read int8 activations: they all do, or none."""
        return all(self.are_int8(segment) for weight in experts for segment in self._matrices[weight.name])

    def is_read(self, value: Value) -> bool:
        """Whether anybody reads the floats of a value or of its views."""
        return self._last_read(value) >= 0

    def may_overwrite(self, value: Value, op: Op, index: int) -> bool:
        """Whether op number `index` is the last to read these columns, and reads them as one input only."""
        others = [other for other in op.inputs if _overlap(other, value)]
        return len(others) == 1 and self._last_read(value) <= index

    def is_read_only_by(self, index: int, value: Value) -> bool:
        """Whether op number `index` alone reads a value, once, and nobody a view of it."""
        return self._readers.get(value.id) == [index] and value.id not in self._views

    def _last_read(self, value: Value) -> int:
        related = [value.id, *self._views.get(value.id, ())]
        if value.base is not None:
            related.append(value.base)
        return max(self._last.get(other, -1) for other in related)


def _overlap(a: Value, b: Value) -> bool:
    return a.id == b.id or a.base == b.id or b.base == a.id
