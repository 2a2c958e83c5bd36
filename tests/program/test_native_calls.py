"""How calls of the native program begin and end: refusal of bad input, cancellation, signals, closing, forks."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tiny_programs import (
    MAX_MODEL_LEN,
    MAX_NUM_TOKENS,
    NUM_BLOCKS,
    Shape,
    make_batch,
    make_native,
    make_program,
    make_sample_batch,
    make_weights,
)

from octavo.errors import EngineDeadError, StepCancelledError
from octavo.program.forward_batch import EDIT_DTYPE, ForwardBatch
from octavo.program.native import NativeProgram

PROGRAM = make_program()
SLOW_PROGRAM = make_program(Shape(hidden=256, ffn=8192))
"""A step of 96 tokens takes several milliseconds."""
IDLE_CPU_FRACTION = 0.1


@pytest.fixture(scope="module")
def native(best_module: ModuleType) -> Iterator[NativeProgram]:
    program = make_native(PROGRAM, make_weights(PROGRAM, best_module), best_module)
    yield program
    program.close()


@pytest.fixture
def slow_native(best_module: ModuleType) -> Iterator[NativeProgram]:
    program = make_native(SLOW_PROGRAM, make_weights(SLOW_PROGRAM, best_module), best_module, num_threads=1)
    yield program
    program.close()


def changed(batch: ForwardBatch, name: str, index: Any, value: int) -> ForwardBatch:
    """Return the batch with one entry of one array changed."""
    if name in ("token_ids", "blocks"):
        array = batch.tables.blocks[0] if name == "blocks" else batch.tables.token_ids
    else:
        array = getattr(batch, name)
    copy = array.copy()
    copy[index] = value
    if name in ("token_ids", "blocks"):
        tables = dataclasses.replace(batch.tables, **{name: (copy,) if name == "blocks" else copy})
        return dataclasses.replace(batch, tables=tables)
    return dataclasses.replace(batch, **{name: copy})


BAD_ENTRIES = [
    ("token_ids", (0, 3), PROGRAM.vocab_size, r"a token id must be in \[0, 100\], got 101"),
    ("token_ids", (1, 0), -1, "a token id must be .* got -1"),
    ("seats", 1, 2, r"a seat must be in \[0, 1\], got 2"),
    ("seats", 0, -1, "a seat must be .* got -1"),
    ("num_computed_tokens", 1, MAX_MODEL_LEN, "a number of computed tokens must be .* got 128"),
    ("num_computed_tokens", 1, -1, "a number of computed tokens must be .* got -1"),
    ("num_scheduled_tokens", 0, 0, "a number of scheduled tokens must be .* got 0"),
    ("num_scheduled_tokens", 1, -1, "a number of scheduled tokens must be .* got -1"),
    ("num_scheduled_tokens", 0, MAX_MODEL_LEN + 1, r"a number of scheduled tokens must be in \[1, 128\], got 129"),
    ("num_scheduled_tokens", 0, 94, r"the number of tokens must be in \[1, 96\], got 97"),
    ("num_scheduled_tokens", 0, 64, r"blocks of a request must be in \[1, 3\], got 4"),
    ("blocks", (0, 2), NUM_BLOCKS, "a block id must be .* got 24"),
    ("blocks", (1, 0), -1, "a block id must be .* got -1"),
]


@pytest.mark.parametrize(("name", "index", "value", "message"), BAD_ENTRIES)
def test_a_batch_that_points_outside_is_refused(
    native: NativeProgram, name: str, index: Any, value: int, message: str
) -> None:
    batch = make_batch(PROGRAM, [(0, 40), (0, 3)])
    with pytest.raises(ValueError, match=message):
        native.run(changed(batch, name, index, value))


def test_a_block_that_no_query_sees_any_more_may_be_gone(best_module: ModuleType) -> None:
    program = make_program(Shape(window=20))
    native = make_native(program, make_weights(program, best_module), best_module)
    batch = make_batch(program, [(60, 1)])
    table = batch.tables.blocks[1].copy()
    tables = dataclasses.replace(batch.tables, blocks=(batch.tables.blocks[0], table))
    table[0, :2] = -1  # positions 0 to 31; the query at 60 sees 41 to 60
    native.run(dataclasses.replace(batch, tables=tables))
    table[0, 2] = -1
    with pytest.raises(ValueError, match=r"a block id must be .* got -1"):
        native.run(dataclasses.replace(batch, tables=tables))


@pytest.mark.parametrize("chunks", [[(0, MAX_NUM_TOKENS + 1)], [(0, 1)] * 9], ids=["tokens", "requests"])
def test_a_batch_beyond_the_limits_is_refused(native: NativeProgram, chunks: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="the number of"):
        native.run(make_batch(PROGRAM, chunks))


def test_arrays_of_different_lengths_are_refused(native: NativeProgram) -> None:
    batch = make_batch(PROGRAM, [(0, 40), (0, 3)])
    with pytest.raises(ValueError, match="num_computed_tokens must have 2 values, got 1"):
        native.run(dataclasses.replace(batch, num_computed_tokens=batch.num_computed_tokens[:-1]))


def test_arrays_of_another_dtype_are_refused(native: NativeProgram) -> None:
    batch = make_batch(PROGRAM, [(0, 40)])
    with pytest.raises(TypeError):
        native.run(dataclasses.replace(batch, seats=batch.seats.astype(np.int64)))


def test_a_step_before_there_are_tables_is_refused(best_module: ModuleType) -> None:
    bare = best_module.Program(num_threads=1, arena_bytes=64, max_num_tokens=1, max_num_seqs=1, max_model_len=1)
    one = np.ones(1, np.int32)
    with pytest.raises(RuntimeError, match="not finished"):
        bare.run(one, one, one, None, False)
    with pytest.raises(ValueError, match="the number of block tables must be 1, got 0"):
        make_native(PROGRAM, make_weights(PROGRAM, best_module), best_module)._native.run(
            one * 0, one, one, None, False
        )


def test_tables_of_other_groups_are_refused_and_the_old_ones_stay(native: NativeProgram) -> None:
    batch = make_batch(PROGRAM, [(0, 40)])
    native.run(batch)
    with pytest.raises(ValueError, match="the number of block tables must be 1, got 0"):
        native.run(dataclasses.replace(batch, tables=dataclasses.replace(batch.tables, blocks=())))
    assert native.run(batch) > 0


@pytest.mark.parametrize(
    "change", [lambda a: a.astype(np.int64), np.asfortranarray, lambda a: a[:, ::2]], ids=["dtype", "order", "step"]
)
@pytest.mark.parametrize("name", ["token_ids", "blocks"])
def test_tables_are_never_copied(native: NativeProgram, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tables = make_batch(PROGRAM, [(0, 40), (0, 3)]).tables
    changed_table = change(tables.blocks[0] if name == "blocks" else tables.token_ids)
    tables = dataclasses.replace(tables, **{name: (changed_table,) if name == "blocks" else changed_table})
    with pytest.raises(TypeError):
        native.run(dataclasses.replace(make_batch(PROGRAM, [(0, 40), (0, 3)]), tables=tables))


def test_what_changes_in_the_tables_is_seen_by_the_next_step(native: NativeProgram) -> None:
    batch, row = make_batch(PROGRAM, [(0, 40)]), np.array([39], np.int32)
    native.run(batch)
    before = native.logits(row)
    batch.tables.token_ids[0, 3] += 1
    native.run(batch)
    assert native.logits(row).tobytes() != before.tobytes()
    batch.tables.token_ids[0, 3] -= 1
    native.run(batch)
    assert native.logits(row).tobytes() == before.tobytes()


EDIT = np.array([(101, 0, 1, 0)], EDIT_DTYPE)
BAD_SAMPLES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"row": [0, 5]}, {}, "a logit row must be .* got 5"),
    ({"row": [-1, 0]}, {}, "a logit row must be .* got -1"),
    ({"forced_token": [0, 101]}, {}, "a forced token must be .* got 101"),
    ({"num_logprobs": [0, 1]}, {}, "num_logprobs must be .* got 1"),
    ({"num_logprobs": [0, 102]}, {"max_logprobs": 102}, r"num_logprobs must be in \[-1, 101\], got 102"),
    ({"temperature": [1.0, -1.0]}, {}, "temperature must be finite, and 0 or at least .* got -1"),
    ({"temperature": [1.0, 1e-38]}, {}, "temperature must be finite, and 0 or at least .* got 1e-38"),
    ({"temperature": [1.0, np.inf]}, {}, "temperature must be finite, and 0 or at least .* got inf"),
    ({"top_k": [0, -1]}, {}, "top_k must be .* got -1"),
    ({"top_p": [1.0, -0.5]}, {}, r"top_p must be in \[0, 1\], got -0.5"),
    ({"min_p": [0.0, 1.5]}, {}, r"min_p must be in \[0, 1\], got 1.5"),
    ({"allowed_row": [0, -1]}, {}, "an allowed row must be .* got 0"),
    ({"first_edit": [0, 1]}, {}, "a first edit must be .* got 1"),
    ({"num_edits": [0, 1]}, {}, "a number of edits must be .* got 1"),
    ({"num_edits": [0, 1]}, {"edits": EDIT}, "an edit's token id must be .* got 101"),
    ({}, {"edits": np.zeros(2, np.int64)}, "edits must be aligned records of 16 bytes, got 8"),
    ({}, {"choices": np.zeros(2, EDIT_DTYPE)}, "choices must be aligned records of 64 bytes, got 16"),
    ({}, {"allowed": np.zeros((1, 3), np.uint32)}, "the words of a mask must be 4, got 3"),
]


@pytest.mark.parametrize(("columns", "arrays", "message"), BAD_SAMPLES, ids=[message for _, _, message in BAD_SAMPLES])
def test_a_sample_batch_that_points_outside_is_refused(
    native: NativeProgram, columns: dict[str, Any], arrays: dict[str, Any], message: str
) -> None:
    native.run(make_batch(PROGRAM, [(0, 5)]))
    batch = make_sample_batch([0, 1])
    for name, values in columns.items():
        batch.choices[name] = values
    with pytest.raises(ValueError, match=message):
        native.sample(dataclasses.replace(batch, **arrays))


def test_a_refused_batch_leaves_the_program_usable(native: NativeProgram) -> None:
    batch = make_batch(PROGRAM, [(0, 40)])
    with pytest.raises(ValueError, match="token id"):
        native.run(changed(batch, "token_ids", (0, 0), -1))
    assert native.run(batch) > 0


class Repeated(threading.Thread):
    """Runs steps until one raises."""

    def __init__(self, native: NativeProgram) -> None:
        super().__init__()
        self._native = native
        self.error: BaseException | None = None

    def run(self) -> None:
        batch = make_batch(SLOW_PROGRAM, [(0, MAX_NUM_TOKENS)])
        try:
            while True:
                self._native.run(batch)
        except BaseException as error:
            self.error = error


def cancel_until_done(native: NativeProgram, thread: threading.Thread) -> None:
    while thread.is_alive():  # a cancel between two calls has no effect
        native.cancel()
        time.sleep(0.001)
    thread.join()


def test_cancel_stops_the_running_call(slow_native: NativeProgram) -> None:
    thread = Repeated(slow_native)
    thread.start()
    cancel_until_done(slow_native, thread)
    assert isinstance(thread.error, StepCancelledError)


def test_a_cancelled_program_computes_the_same_again(slow_native: NativeProgram) -> None:
    batch = make_batch(SLOW_PROGRAM, [(0, MAX_NUM_TOKENS)])
    row = np.array([MAX_NUM_TOKENS - 1], np.int32)
    slow_native.run(batch)
    expected = slow_native.logits(row)
    thread = Repeated(slow_native)
    thread.start()
    cancel_until_done(slow_native, thread)
    slow_native.run(batch)
    assert slow_native.logits(row).tobytes() == expected.tobytes()


def test_cancel_without_a_call_has_no_effect(native: NativeProgram) -> None:
    native.cancel()
    assert native.run(make_batch(PROGRAM, [(0, 5)])) > 0


def test_rows_of_a_cancelled_run_cannot_be_sampled(slow_native: NativeProgram) -> None:
    thread = Repeated(slow_native)
    thread.start()
    cancel_until_done(slow_native, thread)
    with pytest.raises(ValueError, match=r"a logit row must be .* got 0"):
        slow_native.logits(np.array([0], np.int32))


def test_progress_grows_with_every_call(native: NativeProgram) -> None:
    before = native.progress
    native.run(make_batch(PROGRAM, [(0, 5)]))
    assert native.progress > before


def test_a_second_call_at_the_same_time_is_refused(slow_native: NativeProgram) -> None:
    threads = [Repeated(slow_native), Repeated(slow_native)]
    for thread in threads:
        thread.start()
    while all(thread.is_alive() for thread in threads):
        time.sleep(0.001)
    refused, other = sorted(threads, key=lambda thread: thread.is_alive())
    cancel_until_done(slow_native, other)
    assert isinstance(refused.error, RuntimeError)
    assert "one at a time" in str(refused.error)


class Interrupted(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_signal_handler_that_raises_ends_the_call(best_module: ModuleType) -> None:
    program = make_program(Shape(hidden=256, ffn=8192))
    native = make_native(
        program, make_weights(program, best_module), best_module, num_threads=1, max_num_tokens=8192, max_num_seqs=100
    )
    batch = make_batch(program, [(0, 100)] * 80)  # seconds of work
    batch.tables.blocks[0][:] = 0

    def interrupt(*_: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(Interrupted):
            native.run(batch)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert native.run(make_batch(program, [(0, 1)])) > 0


def test_denormals_of_the_caller_survive_a_call(native: NativeProgram) -> None:
    native.run(make_batch(PROGRAM, [(0, 5)]))
    assert (np.full(4, 1e-40, np.float32) * np.float32(1)).tolist() != [0.0] * 4


def test_an_idle_program_uses_no_cpu(native: NativeProgram) -> None:
    native.run(make_batch(PROGRAM, [(0, 40)]))
    time.sleep(0.02)
    wall, cpu = time.perf_counter(), time.process_time()
    time.sleep(0.3)
    assert time.process_time() - cpu < IDLE_CPU_FRACTION * (time.perf_counter() - wall)


def test_a_closed_program_says_so_and_closes_again(best_module: ModuleType) -> None:
    native = make_native(PROGRAM, make_weights(PROGRAM, best_module), best_module)
    native.close()
    native.close()
    native.cancel()
    with pytest.raises(EngineDeadError, match="closed"):
        native.run(make_batch(PROGRAM, [(0, 5)]))


def test_close_ends_a_running_call(slow_native: NativeProgram) -> None:
    thread = Repeated(slow_native)
    before = slow_native.progress
    thread.start()
    while slow_native.progress == before:
        time.sleep(0.001)
    slow_native.close()
    thread.join()
    assert isinstance(thread.error, StepCancelledError | EngineDeadError)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_to_load_its_own(native: NativeProgram) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what this is about
        child = os.fork()
    if child == 0:
        try:
            native.run(make_batch(PROGRAM, [(0, 5)]))
        except EngineDeadError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_memory_is_planned_for_the_largest_step(best_module: ModuleType) -> None:
    weights = make_weights(PROGRAM, best_module)
    small, large = (make_native(PROGRAM, weights, best_module, max_num_tokens=n) for n in (16, 4096))
    assert 0 < small.peak_bytes < large.peak_bytes < 4096 * 4 * (8 * 96 + 4 * 320) + (8 << 20)


def make_empty(module: ModuleType, arena_bytes: int = 4096) -> Any:
    return module.Program(num_threads=1, arena_bytes=arena_bytes, max_num_tokens=4, max_num_seqs=2, max_model_len=64)


FLOATS = np.ones(64, np.float32)
LOADING: dict[str, dict[str, Any]] = {
    "start_rows": {},
    "start_head": {},
    "start_pool": {},
    "rms_norm": {"x": (0, 64), "weight": FLOATS, "heads": 1, "eps": 1e-6, "y": (0, 64), "act": None},
    "rope": {"x": (0, 64), "table": np.ones((64, 64), np.float32), "heads": 1, "head_dim": 64, "interleaved": False},
    "quantize": {"x": (0, 64), "width": 64, "act": (0, 2)},
    "scale": {"x": (0, 64), "factor": 2.0, "width": 64, "y": (0, 64)},
    "add": {"a": (0, 64), "b": (0, 64), "width": 64, "y": (0, 64)},
    "gated_mul": {"x": (0, 64), "gate": "silu", "width": 32, "y": (0, 64), "act": None},
    "route": {
        "logits": (0, 64),
        "choice_bias": None,
        "num_experts": 8,
        "top_k": 2,
        "scoring": "softmax",
        "renormalize": False,
        "scale": 1.0,
        "num_groups": 1,
        "top_groups": 1,
        "group_score": "max",
        "experts": (0, 64),
        "weights": (0, 64),
    },
    "finish": {"logits": (0, 64), "vocab_size": 1},
}


@pytest.mark.parametrize("state", ["closed", "finished"])
@pytest.mark.parametrize("method", LOADING)
def test_a_program_that_is_not_open_takes_nothing_more(best_module: ModuleType, method: str, state: str) -> None:
    native = make_empty(best_module, 1 << 16)
    native.start_rows()
    native.scale(x=(0, 64), factor=2.0, width=64, y=(0, 64))
    if state == "finished":
        native.finish(logits=(0, 64), vocab_size=1)
    else:
        native.close()
    with pytest.raises(RuntimeError, match=f"the program is {state}"):
        getattr(native, method)(**LOADING[method])


@pytest.mark.parametrize("state", ["closed", "finished"])
def test_a_program_that_is_not_open_takes_no_group(best_module: ModuleType, state: str) -> None:
    native = make_empty(best_module, 1 << 16)
    native.finish(logits=(0, 64), vocab_size=1)
    if state == "closed":
        native.close()
    with pytest.raises(RuntimeError, match=f"the program is {state}"):
        native.add_group(np.zeros(1 << 20, np.uint8), 1, 1, 64, 16, "float16")


@pytest.mark.parametrize(("head_dim", "dtype"), [(8, "float16"), (520, "float16"), (64, "int4")])
def test_a_cache_that_the_kernels_cannot_hold_is_refused(best_module: ModuleType, head_dim: int, dtype: str) -> None:
    with pytest.raises(ValueError, match=r"head_dim must be|dtype must be"):
        make_empty(best_module).add_group(np.zeros(1 << 20, np.uint8), 1, 1, head_dim, 16, dtype)


def test_floats_between_two_floats_are_refused(best_module: ModuleType) -> None:
    native = make_empty(best_module)
    native.start_rows()
    with pytest.raises(ValueError, match="floats must be aligned to 4 bytes"):
        native.scale(x=(2, 64), factor=2.0, width=64, y=(0, 64))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_cache_between_two_floats_is_refused(best_module: ModuleType, dtype: str) -> None:
    with pytest.raises(ValueError, match="a cache pool must be aligned to 4 bytes"):
        make_empty(best_module).add_group(np.zeros(1 << 20, np.uint8)[1:], 1, 1, 64, 16, dtype)


def test_positions_that_the_kernels_cannot_count_are_refused(best_module: ModuleType) -> None:
    sizes = {"num_threads": 1, "arena_bytes": 4096, "max_num_tokens": 4, "max_num_seqs": 2}
    best_module.Program(**sizes, max_model_len=1 << 30)
    with pytest.raises(ValueError, match=r"max_model_len must be in \[1, 1073741824\], got 1073741825"):
        best_module.Program(**sizes, max_model_len=(1 << 30) + 1)


@pytest.mark.parametrize("place", [(-4, 64), (3584, 64), (0, 1 << 31), (0, 1 << 62)])
def test_an_operand_outside_the_arena_is_refused(best_module: ModuleType, place: tuple[int, int]) -> None:
    native = make_empty(best_module)
    native.start_rows()
    native.scale(x=(0, 64), factor=2.0, width=64, y=(3072, 64))
    with pytest.raises(ValueError, match="of an operand must be"):
        native.scale(x=place, factor=2.0, width=64, y=(0, 64))


def test_stages_are_timed_from_when_that_is_asked_for(native: NativeProgram) -> None:
    batch, rows = make_batch(PROGRAM, [(0, 5), (0, 3)]), make_sample_batch([4, 7])
    native.run(batch)
    assert native.stage_seconds() == []
    native.time_stages(True)
    whole = native.run(batch) + native.sample(rows).native_seconds
    stages = native.stage_seconds()
    native.time_stages(False)
    assert len(stages) == len(native.stage_ops) + 1
    assert all(seconds > 0.0 for seconds in stages)
    assert sum(stages) <= whole


def test_every_op_is_computed_by_some_stage(native: NativeProgram) -> None:
    computed = {index for ops in native.stage_ops for index in ops}
    assert computed == set(range(len(PROGRAM.body) + len(PROGRAM.head)))
