"""What the kernels are to reach, as fractions of a limit measured in the same second: floors, and aims above them.

They were set for AVX-512 with VNNI, whose prototypes reached the aims. Other levels are measured by the same fractions
of their own, lower peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Limit = Literal["peak", "bandwidth"]


@dataclass(frozen=True, slots=True)
class Target:
    """What one kernel is to reach."""

    limit: Limit
    """"peak": of the arithmetic it is made of; "bandwidth": of reading a working set of its size."""
    floor: float
    """What it must reach."""
    aim: float
    """What a good one reaches."""

    def verdict(self, fraction: float) -> str:
        """Return what a fraction of the limit has come to."""
        return "aim" if fraction >= self.aim else "floor" if fraction >= self.floor else "below"


_MANY_ROWS = 64
_MINIMUM_4_BITS = frozenset(("Q4_1", "Q4_K"))
_SYMMETRIC = frozenset(("Q4_0", "Q5_0", "Q5_1", "Q5_K", "Q8_0"))
_FLOATS = frozenset(("F32", "F16", "BF16"))


def target_of(op: str, weight_format: str, num_rows: int, *, is_prompt: bool) -> Target | None:
    """Return the target of a kind of op in a step; None where none was set.

    Args:
        weight_format: of its matrix, if it has one.
        is_prompt: whether the rows are one prompt's; else each is a request's, with keys and values in memory.
    """
    if op == "paged_attention":
        return Target("peak", 0.45, 0.60) if is_prompt else Target("bandwidth", 0.60, 0.75)
    if op != "linear":
        return None
    if num_rows == 1:
        return Target("bandwidth", 0.80, 0.92)
    if num_rows == 8 and weight_format in _MINIMUM_4_BITS | {"Q4_0"}:
        return Target("peak", 0.40, 0.48)
    if num_rows < _MANY_ROWS:
        return None
    if weight_format in _MINIMUM_4_BITS:
        return Target("peak", 0.50, 0.58)
    if weight_format in _SYMMETRIC:
        return Target("peak", 0.52, 0.62)
    if weight_format == "Q6_K":
        return Target("peak", 0.43, 0.50)
    return Target("peak", 0.65, 0.80) if weight_format in _FLOATS else None
