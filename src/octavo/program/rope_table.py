"""The numbers of a rope table: cosines and sines computed in double, rounded once, for every position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.program.ops import RopeTable

_BAND_POSITIONS = 4096
"""Computed at a time, so that the doubles stay small beside the table of a long context."""


def build_rope_table(table: RopeTable) -> npt.NDArray[np.float32]:
    """Return [num_positions, 2 * half]: `half` cosines, then `half` sines, both multiplied by the table's scale."""
    inv_freq = np.asarray(table.inv_freq, dtype=np.float64)
    values = np.empty((table.num_positions, 2 * table.half), dtype=np.float32)
    for begin in range(0, table.num_positions, _BAND_POSITIONS):
        positions = np.arange(begin, min(begin + _BAND_POSITIONS, table.num_positions), dtype=np.float64)
        angles = positions[:, None] * inv_freq
        values[begin : begin + _BAND_POSITIONS, : table.half] = np.cos(angles) * table.scale
        values[begin : begin + _BAND_POSITIONS, table.half :] = np.sin(angles) * table.scale
    return values
