from __future__ import annotations

import random

import numpy as np

from octavo.observe.recent import RecentValues
from octavo.observe.snapshot import LatencyView


def test_percentiles_are_values_that_enough_others_do_not_exceed() -> None:
    generator = random.Random(1)
    for num_values in (1, 2, 9, 10, 11, 100, 1000):
        values = [generator.random() for _ in range(num_values)]
        recent = RecentValues(1000)
        for value in values:
            recent.add(value)
        expected = np.percentile(values, [50, 90, 99], method="inverted_cdf").tolist()
        assert recent.view() == LatencyView(num_values, *expected)


def test_only_the_last_values_count() -> None:
    recent = RecentValues(10)
    recent.add_times(100.0, 50)
    recent.add_times(1.0, 10)
    assert recent.view() == LatencyView(10, 1.0, 1.0, 1.0)


def test_without_values_there_is_nothing_to_tell() -> None:
    assert RecentValues(10).view() == LatencyView()
