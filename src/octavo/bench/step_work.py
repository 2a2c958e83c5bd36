"""What steps had to do at least, from the program's cost model: split by the limit of the machine that it meets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.program.cost import StepShape, program_costs
from octavo.program.moe_ops import Moe
from octavo.program.ops import Linear

if TYPE_CHECKING:
    from octavo.bench.recorder import StepRecord
    from octavo.program.cost import OpCost
    from octavo.program.ops import Program


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
        work = Work()
        for cost in program_costs(self.program, shape, self.weight_bytes):
            work += self.of_op(cost)
        return work

    def of_op(self, cost: OpCost) -> Work:
        """Return the work of one op."""
        int8_ops = self._int8_ops(cost)
        return Work(int8_ops, cost.flops - int8_ops, cost.bytes)

    def _int8_ops(self, cost: OpCost) -> int:
        """Return how many operations of an op are on 8-bit integers; a mixture computes each of its stacks one way."""
        match cost.op:
            case Linear() as op:
                return cost.flops if op.weight.name in self.int8_weights else 0
            case Moe() as op:
                sizes = {stack: sum(math.prod(weight.shape) for weight in stack) for stack in (op.gate_up, op.down)}
                int8 = [stack for stack in sizes if all(weight.name in self.int8_weights for weight in stack)]
                return cost.flops * sum(sizes[stack] for stack in int8) // sum(sizes.values())
            case _:
                return 0
