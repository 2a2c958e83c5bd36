"""The two limits of a machine, arithmetic and memory, applied to work: which one holds, and for how long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.bench.step_work import Work
from octavo.explain.machines import DTYPE_BYTES, Machine
from octavo.native.peaks import READ_SIZES, ThreadPeaks
from octavo.program.cost import FLOAT_BYTES
from octavo.wording import counted


class Limits(Protocol):
    """What a machine can do at most."""

    @property
    def title(self) -> str:
        """Name and figures, on one line."""
        ...

    @property
    def activation_bytes(self) -> int:
        """What a number of a row takes that one op hands to the next."""
        ...

    def compute_seconds(self, work: Work) -> float:
        """Return what the arithmetic takes at least."""
        ...

    def memory_seconds(self, num_bytes: float, working_set: float) -> float:
        """Return what moving so many bytes takes at least, as part of a working set that is read over and over."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredLimits:
    """This machine, as measured a moment ago."""

    peaks: ThreadPeaks
    isa: str

    @property
    def title(self) -> str:
        """Name and figures, on one line."""
        int8, fp32 = self.peaks.int8_ops_per_s / 1e9, self.peaks.fp32_flops_per_s / 1e9
        bandwidth = self.peaks.read_bandwidth(READ_SIZES[-1]) / 1e9
        return (
            f"this machine, {counted(self.peaks.num_threads, 'thread')}, {self.isa}: {int8:,.0f} GOP/s int8, "
            f"{fp32:,.0f} GFLOP/s fp32, {bandwidth:,.1f} GB/s from memory"
        )

    @property
    def activation_bytes(self) -> int:
        """Rows are float32 here, whatever the weights are."""
        return FLOAT_BYTES

    def compute_seconds(self, work: Work) -> float:
        """Return what the arithmetic takes at least: integers at the int8 peak, the rest at that of float32."""
        return work.int8_ops / self.peaks.int8_ops_per_s + work.fp32_flops / self.peaks.fp32_flops_per_s

    def memory_seconds(self, num_bytes: float, working_set: float) -> float:
        """Return what reading takes; a small working set comes from cache."""
        return num_bytes / self.peaks.read_bandwidth(working_set)


@dataclass(frozen=True, slots=True)
class PublishedLimits:
    """A device of the table, with bfloat16 arithmetic and rows for everything."""

    machine: Machine

    @property
    def title(self) -> str:
        """Name and figures, on one line."""
        peak, bandwidth = self.machine.peak("bfloat16") / 1e12, self.machine.bytes_per_s / 1e12
        return f"{self.machine.title}: {peak:,.0f} TFLOP/s bfloat16, {bandwidth:g} TB/s ({self.machine.source})"

    @property
    def activation_bytes(self) -> int:
        """Rows are in the dtype of the arithmetic."""
        return DTYPE_BYTES["bfloat16"]

    def compute_seconds(self, work: Work) -> float:
        """Return what the arithmetic takes at least, all of it in bfloat16."""
        return (work.int8_ops + work.fp32_flops) / self.machine.peak("bfloat16")

    def memory_seconds(self, num_bytes: float, working_set: float) -> float:
        """Return what moving bytes takes; caches are not in the table."""
        del working_set
        return num_bytes / self.machine.bytes_per_s


def best_peaks(measured: Sequence[ThreadPeaks]) -> ThreadPeaks:
    """Return the best of several measurements: a peak that was reached once is one."""
    return ThreadPeaks(
        measured[0].num_threads,
        max(peaks.int8_ops_per_s for peaks in measured),
        max(peaks.fp32_flops_per_s for peaks in measured),
        {size: max(peaks.read_bytes_per_s[size] for peaks in measured) for size in measured[0].read_bytes_per_s},
    )


def first_not_shorter(seconds: Callable[[int], tuple[float, float]], most: int) -> int | None:
    """Return the first number in [1, most] at which, and after, the first of two times is not the shorter; or None."""

    def is_reached(number: int) -> bool:
        first, second = seconds(number)
        return first >= second

    if not is_reached(most):
        return None
    return bisect_left(range(1, most), True, key=is_reached) + 1
