"""What steps had to do at least, from the program's cost model: split by the limit of the machine that it meets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.program.cost import StepShape, program_costs
from octavo.program.ops import Linear

if TYPE_CHECKING:
    from octavo.bench.recorder import StepRecord
    from octavo.program.ops import Op, Program


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic and traffic. A multiply-add counts as two operations."""

    int8_ops: int = 0
    fp32_flops: int = 0
    bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.int8_ops + other.int8_ops, self.fp32_flops + other.fp32_flops, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class WorkModel:
    """Counts the work of steps of one loaded model."""

    program: Program
    weight_bytes: Mapping[str, int]
    """What each weight takes in memory, by name."""
    int8_weights: frozenset[str]
    """Matrices whose products are computed in 8-bit integers."""

    def of(self, step: StepRecord) -> Work:
        """Return the work of one step."""
        seq_lens = [old + new for old, new in zip(step.num_computed_tokens, step.num_scheduled_tokens, strict=True)]
        shape = StepShape(step.num_scheduled_tokens, seq_lens, step.num_logit_rows)
        int8_ops = fp32_flops = num_bytes = 0
        for cost in program_costs(self.program, shape, self.weight_bytes):
            if self.is_int8(cost.op):
                int8_ops += cost.flops
            else:
                fp32_flops += cost.flops
            num_bytes += cost.bytes
        return Work(int8_ops, fp32_flops, num_bytes)

    def is_int8(self, op: Op) -> bool:
        """Whether an op is a product in 8-bit integers."""
        return isinstance(op, Linear) and op.weight.name in self.int8_weights
