"""The executor's promises: failures come out of `sample`, and leave it usable."""

from __future__ import annotations

import pytest
from runner_fakes import VOCAB, FakeProgram, fake_token, make_assignment, make_plan

from octavo.cache_spec import AttentionGroupSpec
from octavo.core.executor import Executor
from octavo.errors import EngineDeadError, StepCancelledError
from octavo.runner.cache_memory import CacheMemory, plan_capacity
from octavo.runner.input_batch import InputBatch
from octavo.runner.local_executor import LocalExecutor


def make_executor(program: FakeProgram) -> LocalExecutor:
    specs = [AttentionGroupSpec("full", 1, 1, 64, "float16", 16)]
    capacity = plan_capacity(specs, 8 * specs[0].block_bytes)
    inputs = InputBatch(max_num_seqs=4, max_model_len=64, block_sizes=(16,), vocab_size=VOCAB, hidden_size=8)
    return LocalExecutor(program, capacity, CacheMemory(specs, capacity.num_blocks), inputs)


def make_first_plan():
    return make_plan([(0, 0, 1)], [(0, 0, 1)], assigned=[make_assignment(0, [1], [0])])


def test_it_is_an_executor() -> None:
    executor: Executor = make_executor(FakeProgram())
    assert executor.capacity().num_blocks == (8,)
    assert executor.sample(executor.submit(make_first_plan()), None).token_ids == [fake_token(1000, 1)]


@pytest.mark.parametrize("error", [StepCancelledError("cancelled"), RuntimeError("injected")], ids=["cancel", "fault"])
def test_a_failed_body_is_raised_by_sample_and_the_next_plan_runs(error: Exception) -> None:
    program = FakeProgram()
    executor = make_executor(program)
    program.run_error = error
    handle = executor.submit(make_first_plan())
    with pytest.raises(type(error)):
        executor.sample(handle, None)
    program.run_error = None
    again = make_first_plan()
    again.released_seats = [0]
    assert executor.sample(executor.submit(again), None).token_ids == [fake_token(1000, 1)]


def test_changes_of_a_failed_step_are_not_lost() -> None:
    program = FakeProgram()
    executor = make_executor(program)
    program.run_error = RuntimeError("injected")
    executor.submit(make_first_plan())
    program.run_error = None
    executor.submit(make_plan([(0, 0, 1)], [(0, 0, 1)]))
    assert program.forward.token_ids.tolist() == [1]


def test_cancel_reaches_the_program() -> None:
    program = FakeProgram()
    make_executor(program).cancel()
    assert program.num_cancels == 1


def test_released_blocks_can_be_written_again() -> None:
    executor = make_executor(FakeProgram())
    executor.release_blocks(0, [0, 7])
    assert executor.sample(executor.submit(make_first_plan()), None).row_errors == {}


def test_nothing_runs_after_shutdown() -> None:
    program = FakeProgram()
    executor = make_executor(program)
    executor.shutdown()
    executor.shutdown()
    assert program.is_closed
    with pytest.raises(EngineDeadError, match="closed"):
        executor.submit(make_first_plan())
