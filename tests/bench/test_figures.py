from __future__ import annotations

import pytest
from bench_helpers import make_peaks, make_request, make_step

from octavo.bench.figures import (
    Job,
    Percentiles,
    fractions_of_peaks,
    job_figures,
    percentiles_ms,
    python_share,
    tokens_per_s,
)
from octavo.bench.recorder import StepRecord
from octavo.bench.step_work import Work


def no_work(step: StepRecord) -> Work:
    del step
    return Work()


def test_prefill_rate_counts_steps_with_only_prompt_rows() -> None:
    steps = [make_step(prefill=100, seconds=2.0), make_step(prefill=50, decode=3, seconds=9.0), make_step(decode=4)]
    figures = job_figures(Job(steps, [make_request()], 10.0), no_work, make_peaks())
    assert figures.prefill_tokens_per_s == 50.0


def test_decode_rate_counts_steps_with_only_decode_rows() -> None:
    steps = [make_step(prefill=100), make_step(prefill=50, decode=3, seconds=9.0), make_step(decode=4, seconds=0.5)]
    figures = job_figures(Job(steps, [make_request()], 10.0), no_work, make_peaks())
    assert figures.decode_tokens_per_s == 8.0


def test_rates_are_none_where_there_are_no_such_steps() -> None:
    figures = job_figures(Job([make_step(prefill=9, decode=1)], [make_request()], 1.0), no_work, make_peaks())
    assert (figures.prefill_tokens_per_s, figures.decode_tokens_per_s) == (None, None)


def test_whole_job_rates_are_over_its_own_time() -> None:
    job = Job([make_step(decode=1)], [make_request(num_output=6), make_request(num_output=4)], 2.0)
    figures = job_figures(job, no_work, make_peaks())
    assert (figures.requests_per_s, figures.output_tokens_per_s, figures.total_tokens_per_s) == (1.0, 5.0, 15.0)


def test_first_token_counts_from_arrival_and_the_others_from_the_first() -> None:
    request = make_request(queued=1.0, first=1.5, last=3.5, num_output=5)
    figures = job_figures(Job([make_step(decode=1)], [request], 1.0), no_work, make_peaks())
    assert figures.ttft_ms == Percentiles(500.0, 500.0, 500.0)
    assert figures.tpot_ms == Percentiles(500.0, 500.0, 500.0)


def test_a_single_token_has_no_time_per_further_token() -> None:
    figures = job_figures(Job([make_step(prefill=5)], [make_request(num_output=1)], 1.0), no_work, make_peaks())
    assert figures.tpot_ms is None


def test_time_between_tokens_weighs_a_step_by_its_decoding_requests() -> None:
    steps = [make_step(decode=1, seconds=1.0), make_step(prefill=64, decode=3, seconds=5.0)]
    figures = job_figures(Job(steps, [make_request()], 6.0), no_work, make_peaks())
    assert figures.itl_ms is not None
    assert figures.itl_ms.p50 == 5000.0


def test_python_share_is_that_of_decode_steps_that_follow_a_step() -> None:
    steps = [
        make_step(decode=2, seconds=1.0, native=0.1, follows=False),
        make_step(prefill=9, decode=2, seconds=1.0, native=0.1),
        make_step(decode=2, seconds=1.0, native=0.9),
        make_step(decode=2, seconds=3.0, native=2.9),
    ]
    assert python_share(steps) == pytest.approx(1 - 3.8 / 4.0)


def test_python_share_of_prompts_alone_is_that_of_their_steps() -> None:
    steps = [make_step(prefill=9, follows=False), make_step(prefill=9, seconds=1.0, native=0.75)]
    assert python_share(steps) == 0.25


def test_python_share_of_a_single_step_is_unknown() -> None:
    assert python_share([make_step(decode=1, follows=False)]) is None


def test_fractions_compare_all_steps_with_what_their_time_allows() -> None:
    works = {1: Work(int8_ops=400, fp32_flops=20, bytes=3000), 2: Work(int8_ops=600, fp32_flops=40, bytes=1000)}
    steps = [make_step(decode=1, seconds=1.0), make_step(decode=2, seconds=3.0)]
    peaks = make_peaks(int8=500.0, fp32=30.0, bandwidth=2000.0)
    fractions = fractions_of_peaks(steps, lambda step: works[step.num_tokens], peaks)
    assert fractions == pytest.approx((1000 / 4 / 500, 60 / 4 / 30, 4000 / 4 / 2000))


def test_a_model_without_8_bit_products_has_no_fraction_of_their_peak() -> None:
    assert fractions_of_peaks([make_step(decode=1)], lambda _: Work(0, 10, 10), make_peaks())[0] is None


def test_without_steps_there_are_no_fractions() -> None:
    assert fractions_of_peaks([], no_work, make_peaks()) == (None, None, None)
    assert tokens_per_s([]) is None


def test_percentiles_lie_on_lines_between_measurements() -> None:
    assert percentiles_ms([0.001 * i for i in range(101)]) == Percentiles(
        pytest.approx(50.0), pytest.approx(90.0), pytest.approx(99.0)
    )
    assert percentiles_ms([]) is None
