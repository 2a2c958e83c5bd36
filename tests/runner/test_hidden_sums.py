"""Sums by seat: which rows are added, when a sum is complete, when it begins anew."""

from __future__ import annotations

from runner_fakes import HIDDEN, VOCAB, FakeProgram, make_assignment, make_plan

from octavo.cache_spec import AttentionGroupSpec
from octavo.core.step import ModelRunnerOutput, NonFiniteError, SchedulerOutput
from octavo.runner.cache_memory import CacheMemory
from octavo.runner.input_batch import InputBatch
from octavo.runner.model_runner import ModelRunner


class Harness:
    def __init__(self) -> None:
        self.program = FakeProgram()
        inputs = InputBatch(max_num_seqs=8, max_model_len=64, block_sizes=(16,), vocab_size=VOCAB, hidden_size=HIDDEN)
        memory = CacheMemory([AttentionGroupSpec("full", 1, 1, 16, "float16", 16)], [8])
        self.runner = ModelRunner(self.program, inputs, memory)

    def step(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self.runner.execute(plan)
        return self.runner.sample(plan)


def test_the_mean_adds_all_rows_over_its_steps_and_the_last_only_its_last() -> None:
    harness = Harness()
    assigned = [
        make_assignment(3, [5, 6, 7], [0], pooling="mean"),
        make_assignment(1, [8, 9, 10], [1], pooling="last"),
        make_assignment(2, [1, 2], [2]),
    ]
    first = harness.step(make_plan([(2, 0, 2), (3, 0, 2), (1, 0, 2)], [(1, 2, 2)], assigned=assigned))
    assert harness.program.pooled == ([2, 3], [3, 3])
    assert (first.sums, len(first.token_ids)) == ([], 1)
    second = harness.step(make_plan([(2, 2, 1), (3, 2, 1), (1, 2, 1)], [(0, 2, 3)]))
    assert harness.program.pooled == ([1, 2], [3, 1])
    assert [total.tolist() for total in second.sums] == [[18.0] * HIDDEN, [10.0] * HIDDEN]
    assert second.native_seconds == 0.25 + 0.5 + 0.125


def test_steps_without_pooled_requests_call_nothing() -> None:
    harness = Harness()
    harness.step(make_plan([(0, 0, 2)], [(1, 0, 2)], assigned=[make_assignment(0, [5, 6], [0])]))
    assert harness.program.pooled is None


def test_a_request_that_takes_its_seat_again_begins_anew() -> None:
    harness = Harness()
    for _ in range(2):
        harness.step(make_plan([(3, 0, 2)], assigned=[make_assignment(3, [5, 6, 7], [0], pooling="mean")]))
    (total,) = harness.step(make_plan([(3, 2, 1)])).sums
    assert total.tolist() == [18.0] * HIDDEN


def test_a_seat_that_was_pooled_generates_for_its_next_request() -> None:
    harness = Harness()
    harness.step(make_plan([(3, 0, 1)], assigned=[make_assignment(3, [5], [0], pooling="mean")]))
    harness.program.pooled = None
    assigned = [make_assignment(3, [5], [0])]
    result = harness.step(make_plan([(3, 0, 1)], [(0, 3, 1)], assigned=assigned, released_seats=[3]))
    assert (harness.program.pooled, result.sums, len(result.token_ids)) == (None, [], 1)


def test_a_sum_that_was_given_away_does_not_change() -> None:
    harness = Harness()
    (total,) = harness.step(make_plan([(3, 0, 1)], assigned=[make_assignment(3, [5], [0], pooling="mean")])).sums
    harness.step(make_plan([(3, 0, 1)], assigned=[make_assignment(3, [9], [0], pooling="mean")]))
    assert total.tolist() == [5.0] * HIDDEN


def test_sums_that_are_not_finite_are_counted_on_after_the_logit_rows() -> None:
    harness = Harness()
    harness.program.bad_token = 6
    assigned = [
        make_assignment(0, [1], [0]),
        make_assignment(1, [5], [1], pooling="last"),
        make_assignment(2, [6], [2], pooling="last"),
    ]
    result = harness.step(make_plan([(0, 0, 1), (1, 0, 1), (2, 0, 1)], [(0, 0, 1)], assigned=assigned))
    assert list(result.row_errors) == [2]
    assert isinstance(result.row_errors[2], NonFiniteError)
    assert result.sums[0].tolist() == [5.0] * HIDDEN
