from __future__ import annotations

import pytest

from octavo.native.peaks import ThreadPeaks, measure_peaks


def test_every_peak_of_the_machine_is_measured() -> None:
    peaks = measure_peaks(2, read_sizes=(1 << 16, 1 << 20))
    for threads, side in ((1, peaks.one), (2, peaks.all)):
        assert side.num_threads == threads
        assert side.int8_ops_per_s > 1e8
        assert side.fp32_flops_per_s > 1e8
        assert list(side.read_bytes_per_s) == [1 << 16, 1 << 20]
        assert min(side.read_bytes_per_s.values()) > 1e7


def test_bandwidth_between_two_sizes_lies_between_theirs() -> None:
    peaks = ThreadPeaks(1, 1.0, 1.0, {1024: 40.0, 4096: 20.0})
    bandwidths = [peaks.read_bandwidth(size) for size in (0, 1024, 2048, 4096, 1 << 30)]
    assert bandwidths == pytest.approx([40, 40, 30, 20, 20])
