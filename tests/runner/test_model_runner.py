"""A plan in, a `ModelRunnerOutput` out, on a program without a model."""

from __future__ import annotations

import numpy as np
import pytest
from runner_fakes import HIDDEN, VOCAB, FakeProgram, fake_token, make_assignment, make_plan

from octavo.cache_spec import AttentionGroupSpec
from octavo.core.step import Move, NonFiniteError, PromptLogprobRows, TokenLogprobs
from octavo.errors import RequestError
from octavo.runner.cache_memory import CacheMemory
from octavo.runner.input_batch import InputBatch
from octavo.runner.model_runner import ModelRunner
from octavo.sampling_params import SamplingParams


class Harness:
    """A runner with its fake program, seats and memory."""

    def __init__(self) -> None:
        spec = AttentionGroupSpec("full", 1, 1, 16, "float16", 16)
        self.program = FakeProgram()
        self.inputs = InputBatch(
            max_num_seqs=8, max_model_len=64, block_sizes=(16,), vocab_size=VOCAB, hidden_size=HIDDEN
        )
        self.memory = CacheMemory([spec], [8])
        self.runner = ModelRunner(self.program, self.inputs, self.memory)

    def step(self, plan):
        self.runner.execute(plan)
        return self.runner.sample(plan)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_a_sampled_token_is_an_input_of_the_next_step(harness: Harness) -> None:
    assigned = [make_assignment(3, [5, 6], [0]), make_assignment(1, [7], [1])]
    result = harness.step(make_plan([(3, 0, 2), (1, 0, 1)], [(1, 3, 2), (2, 1, 1)], assigned=assigned))
    expected = [fake_token(1003, 2), fake_token(1001, 1)]
    assert result.token_ids == expected
    assert result.logprobs == [None, None]
    harness.step(make_plan([(3, 2, 1), (1, 1, 1)], [(0, 3, 3), (1, 1, 2)]))
    assert harness.program.forward.token_ids.tolist() == expected


def test_a_step_in_the_middle_of_a_prompt_samples_nothing(harness: Harness) -> None:
    result = harness.step(make_plan([(0, 0, 2)], assigned=[make_assignment(0, [1, 2, 3], [0])]))
    assert (result.token_ids, result.logprobs, result.row_errors) == ([], [], {})
    assert harness.program.num_runs == 1
    assert harness.program.sampling is None


def test_a_plan_without_rows_only_takes_over_changes(harness: Harness) -> None:
    harness.step(make_plan(assigned=[make_assignment(0, [1, 2, 3], [0])]))
    assert harness.program.num_runs == 0
    harness.step(make_plan([(0, 2, 1)], [(0, 0, 3)]))
    assert harness.program.forward.token_ids.tolist() == [3]


def test_a_fork_samples_one_row_once_per_seat(harness: Harness) -> None:
    seated = [make_assignment(seat, [1, 2, 3], [0], params=SamplingParams()) for seat in (0, 4, 5)]
    plan = make_plan([(0, 0, 3)], [(2, 0, 3), (2, 4, 3), (2, 5, 3)], assigned=seated)
    result = harness.step(plan)
    assert harness.program.sampling.choices["row"].tolist() == [2, 2, 2]
    assert harness.program.sampling.choices["seed"].tolist() == [1000, 1004, 1005]
    harness.step(make_plan([(5, 3, 1), (0, 3, 1)], [(0, 5, 4), (1, 0, 4)]))
    assert harness.program.forward.token_ids.tolist() == [result.token_ids[2], result.token_ids[0]]


def test_moves_are_done_before_the_body(harness: Harness) -> None:
    harness.memory.block(0, 2)[:] = 7
    seen = []
    harness.program.run = lambda _batch: seen.append(int(harness.memory.block(0, 5)[0])) or 0.0
    plan = make_plan([(0, 0, 1)], assigned=[make_assignment(0, [1], [5])], moves=[Move("copy_block", 0, 2, 5)])
    harness.step(plan)
    assert seen == [7]


def test_logprobs_are_gathered_for_the_rows_that_want_them(harness: Harness) -> None:
    wants = [None, 0, 2]
    assigned = [
        make_assignment(seat, [1], [seat], params=SamplingParams(logprobs=count)) for seat, count in enumerate(wants)
    ]
    result = harness.step(make_plan([(s, 0, 1) for s in range(3)], [(s, s, 1) for s in range(3)], assigned=assigned))
    first, second, third = result.token_ids
    assert first == fake_token(1000, 1)
    assert result.logprobs == [
        None,
        TokenLogprobs([second], [-1.0], 2),
        TokenLogprobs([third, 2, 3], [-2.0, -2.0, -2.5], 3),
    ]


def test_prompt_rows_are_scored_with_the_next_prompt_token(harness: Harness) -> None:
    wanted = [PromptLogprobRows(1, 1, 2, 2, 1), PromptLogprobRows(0, 3, 1, 1, 0)]
    assigned = [
        make_assignment(2, [9], [3]),
        make_assignment(1, [10, 11, 12, 13], [1]),
        make_assignment(0, [20, 21], [0]),
    ]
    plan = make_plan(
        [(2, 0, 1), (1, 1, 2), (0, 0, 2)], [(0, 2, 1), (4, 0, 2)], assigned=assigned, prompt_logprob_rows=wanted
    )
    result = harness.step(plan)
    assert len(result.token_ids) == 2
    assert harness.program.sampling.choices["row"].tolist() == [0, 4, 1, 2, 3]
    assert harness.program.sampling.choices["forced_token"].tolist() == [-1, -1, 12, 13, 21]
    assert result.prompt_logprobs == {
        0: [TokenLogprobs([12, 1], [-1.0, -1.0], 3), TokenLogprobs([13, 2], [-2.0, -2.0], 4)],
        1: [TokenLogprobs([21], [-3.0], 5)],
    }


def test_prompt_rows_are_scored_where_no_token_is_sampled(harness: Harness) -> None:
    plan = make_plan(
        [(0, 0, 2)],
        assigned=[make_assignment(0, [1, 2, 3], [0])],
        prompt_logprob_rows=[PromptLogprobRows(0, 0, 1, 2, 0)],
    )
    result = harness.step(plan)
    assert result.token_ids == []
    assert [entry.token_ids for entry in result.prompt_logprobs[0]] == [[2], [3]]


def test_a_row_that_is_not_finite_fails_alone(harness: Harness) -> None:
    assigned = [make_assignment(seat, [1], [seat]) for seat in range(3)]
    harness.program.bad_rows = [1]
    result = harness.step(make_plan([(s, 0, 1) for s in range(3)], [(s, s, 1) for s in range(3)], assigned=assigned))
    assert list(result.row_errors) == [1]
    assert isinstance(result.row_errors[1], NonFiniteError)
    assert harness.inputs.token_ids[:3, 1].tolist() == [fake_token(1000, 1), 0, fake_token(1002, 1)]


def test_a_row_whose_tokens_are_all_excluded_is_a_fault_of_its_request(harness: Harness) -> None:
    harness.program.excluded_rows = [0]
    result = harness.step(make_plan([(0, 0, 1)], [(0, 0, 1)], assigned=[make_assignment(0, [1], [0])]))
    assert isinstance(result.row_errors[0], RequestError)
    assert "allowed_token_ids" in str(result.row_errors[0])


def test_a_scored_row_that_is_not_finite_fails_its_request_alone(harness: Harness) -> None:
    wanted = [PromptLogprobRows(seat, 2 * seat, 1, 1, 1) for seat in range(2)]
    assigned = [make_assignment(seat, [1, 2], [seat]) for seat in range(3)]
    plan = make_plan(
        [(seat, 0, 2) for seat in range(3)],
        [(1, 0, 2), (3, 1, 2), (5, 2, 2)],
        assigned=assigned,
        prompt_logprob_rows=wanted,
    )
    harness.program.bad_rows = [4]
    result = harness.step(plan)
    assert list(result.row_errors) == [4], "three rows are sampled, and the second entry has no scores"
    assert isinstance(result.row_errors[4], NonFiniteError)
    assert harness.inputs.token_ids[:3, 2].tolist() == result.token_ids


def test_a_request_that_cannot_be_sampled_fails_alone(harness: Harness) -> None:
    bad = SamplingParams(allowed_token_ids=[VOCAB])
    assigned = [make_assignment(0, [1], [0]), make_assignment(1, [1], [1], params=bad)]
    result = harness.step(make_plan([(0, 0, 1), (1, 0, 1)], [(0, 0, 1), (1, 1, 1)], assigned=assigned))
    assert list(result.row_errors) == [1]
    assert result.token_ids[0] == fake_token(1000, 1)
    assert harness.inputs.token_ids[:2, 1].tolist() == [fake_token(1000, 1), 0]


def test_a_step_that_fails_while_sampling_appends_nothing(harness: Harness) -> None:
    harness.program.sample_error = RuntimeError("injected")
    plan = make_plan([(0, 0, 1)], [(0, 0, 1)], assigned=[make_assignment(0, [1], [0])])
    with pytest.raises(RuntimeError, match="injected"):
        harness.step(plan)
    assert harness.inputs.token_ids[0].tolist() == [1] + [0] * 63


def test_times_are_reported(harness: Harness) -> None:
    result = harness.step(make_plan([(0, 0, 1)], [(0, 0, 1)], assigned=[make_assignment(0, [1], [0])]))
    assert result.native_seconds == 0.75
    assert result.step_seconds > 0
    idle = harness.step(make_plan())
    assert idle.native_seconds == 0


def test_the_plan_is_not_changed(harness: Harness) -> None:
    plan = make_plan([(0, 0, 2)], [(1, 0, 2)], assigned=[make_assignment(0, [1, 2], [0])])
    arrays = [plan.seats, plan.num_computed_tokens, plan.num_scheduled_tokens, plan.logit_rows, plan.logit_positions]
    before = [array.copy() for array in arrays]
    harness.step(plan)
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, before, strict=True))
