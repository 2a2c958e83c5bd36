"""What this machine can do at most, measured: the limits that every kernel is compared with.

Clocks move and cores are taken away, so a peak is the best of several short windows, and means something only beside
what was measured in the same seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.native.isa import kernels
from octavo.native.threads import default_num_threads

READ_SIZES: tuple[int, ...] = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
"""Bytes of the working sets that reading is measured on: from a core's own cache to memory."""
_WINDOW_SECONDS = 0.003
_NUM_WINDOWS = 8


@dataclass(frozen=True, slots=True)
class ThreadPeaks:
    """What so many threads do together."""

    num_threads: int
    int8_ops_per_s: float
    """Of the int8 product that the kernels of this ISA level are made of; a multiply-add counts as two."""
    fp32_flops_per_s: float
    """A multiply-add counts as two."""
    read_bytes_per_s: Mapping[int, float]
    """By the bytes of what is read over and over, ascending."""

    def read_bandwidth(self, num_bytes: float) -> float:
        """Return bytes per second of reading a working set of this size over and over.

        Between two measured sizes: a straight line over the logarithm of the size.
        """
        sizes = sorted(self.read_bytes_per_s)
        positions = [math.log(size) for size in sizes]
        return float(np.interp(math.log(max(1.0, num_bytes)), positions, [self.read_bytes_per_s[s] for s in sizes]))


@dataclass(frozen=True, slots=True)
class MachinePeaks:
    """The limits of one machine, for one thread and for all that an engine uses."""

    isa: str
    one: ThreadPeaks
    all: ThreadPeaks


class PeakMeter:
    """Measures single peaks; keeps the memory that reading needs."""

    def __init__(self, num_threads: int, module: Any = None) -> None:
        """`module`: the kernels of one ISA level; by default those of this process."""
        self.num_threads = num_threads
        self._module = kernels() if module is None else module
        self._data = np.empty(0, np.uint8)

    def int8_ops_per_s(self) -> float:
        """Measure int8 products without loads and stores."""
        return _best(lambda: self._module.int8_operations_per_second(self.num_threads, _WINDOW_SECONDS))

    def fp32_flops_per_s(self) -> float:
        """Measure fused multiply-adds without loads and stores."""
        return _best(lambda: self._module.f32_operations_per_second(self.num_threads, _WINDOW_SECONDS))

    def read_bytes_per_s(self, num_bytes: int) -> float:
        """Measure reading a working set over and over."""
        if len(self._data) < num_bytes:
            self._data = np.ones(num_bytes, np.uint8)  # written, or all its pages would be one page of zeros
        data = self._data[:num_bytes]
        seconds = max(_WINDOW_SECONDS, num_bytes / 30e9)  # about one pass of memory at least
        return _best(lambda: self._module.bytes_read_per_second(data, self.num_threads, seconds))

    def measure(self, read_sizes: Sequence[int] = READ_SIZES) -> ThreadPeaks:
        """Measure all peaks: about a third of a second."""
        return ThreadPeaks(
            self.num_threads,
            self.int8_ops_per_s(),
            self.fp32_flops_per_s(),
            {size: self.read_bytes_per_s(size) for size in sorted(read_sizes)},
        )


def measure_peaks(num_threads: int | None = None, *, read_sizes: Sequence[int] = READ_SIZES) -> MachinePeaks:
    """Measure the limits of this machine with the kernels of this process.

    Args:
        num_threads: by default as many as an engine uses.

    Raises: `NativeError`.
    """
    every = PeakMeter(num_threads or default_num_threads()).measure(read_sizes)
    one = every if every.num_threads == 1 else PeakMeter(1).measure(read_sizes)
    return MachinePeaks(str(kernels().isa), one, every)


def _best(measure: Callable[[], float]) -> float:
    return float(max(measure() for _ in range(_NUM_WINDOWS)))
