"""Runs a program without an engine around it, in steps of any shape: for benchmarks and explanations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.cache_spec import AttentionGroupSpec
from octavo.program.forward_batch import ForwardBatch, SampleBatch, SeatTables, greedy_choices
from octavo.program.native import NativeProgram
from octavo.program.ops import Embedding
from octavo.runner.cache_memory import READ_SLACK_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.cache_spec import CacheGroupSpec
    from octavo.program.cost import StepShape
    from octavo.program.instructions import ProgramWeights
    from octavo.program.ops import Program

_CACHE_FILL = 0x2C
"""Every byte of a cache: in any of its dtypes an ordinary small number, neither NaN nor denormal."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Where the time of one step went."""

    step_seconds: float
    """Of the whole, as in `StepTimer.seconds`."""
    stage_ops: Sequence[tuple[int, ...]]
    """Per stage, the ops that it computes, by index over body and head."""
    stage_seconds: Sequence[float]
    """Per stage, and at the end of the choice of tokens."""


class StepTimer:
    """A program by itself, without scheduler and requests: runs steps of any shape.

    Args:
        program: a model's, or what `isolation.isolate` made of it; then without a head.
        shapes: of all steps that will be asked for.
        pools: memory of the cache, from `cache_pools` for the same shapes.
    """

    def __init__(
        self,
        program: Program,
        weights: ProgramWeights,
        *,
        shapes: Sequence[StepShape],
        pools: Sequence[NDArray[np.uint8]],
        num_threads: int,
        activation_quantization: bool = True,
        has_head: bool = True,
    ) -> None:
        self._program = program
        self._has_head = has_head
        self._num_token_ids = min(op.weights[0].shape[0] for op in program.body if isinstance(op, Embedding))
        self._native = NativeProgram(
            program,
            weights,
            cache_groups=program.cache_groups,
            pools=pools,
            max_num_tokens=max(sum(shape.query_lens) for shape in shapes),
            max_num_seqs=max(len(shape.query_lens) for shape in shapes),
            max_model_len=program.max_model_len,
            num_threads=num_threads,
            activation_quantization=activation_quantization,
        )

    def __enter__(self) -> StepTimer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._native.close()

    def seconds(self, shape: StepShape, *, at_least: float = 0.1, max_runs: int = 1000) -> list[float]:
        """Return the native time of each of several runs, after one that does not count.

        Args:
            at_least: seconds they take together, unless `max_runs` come first; two runs there are always.
        """
        batch = make_forward_batch(self._program.cache_groups, shape, self._num_token_ids)
        rows = _greedy_rows(shape) if self._has_head else None
        self._run(batch, rows)
        runs: list[float] = []
        started = time.perf_counter()
        while len(runs) < 2 or (len(runs) < max_runs and time.perf_counter() - started < at_least):
            runs.append(self._run(batch, rows))
        return runs

    def stage_seconds(self, shape: StepShape, *, at_least: float = 0.1, max_runs: int = 1000) -> StageTimes:
        """Return what each stage took in the fastest of several runs.

        Args: as of `seconds`.
        """
        batch = make_forward_batch(self._program.cache_groups, shape, self._num_token_ids)
        rows = _greedy_rows(shape)
        self._run(batch, rows)
        self._native.time_stages(True)
        best: StageTimes | None = None
        started, num_runs = time.perf_counter(), 0
        while num_runs < 2 or (num_runs < max_runs and time.perf_counter() - started < at_least):
            seconds, num_runs = self._run(batch, rows), num_runs + 1
            if best is None or seconds < best.step_seconds:
                best = StageTimes(seconds, self._native.stage_ops, self._native.stage_seconds())
        self._native.time_stages(False)
        assert best is not None, "it ran"
        return best

    def _run(self, batch: ForwardBatch, rows: SampleBatch | None) -> float:
        seconds = self._native.run(batch)
        return seconds if rows is None else seconds + self._native.sample(rows).native_seconds


def pool_sizes(groups: Sequence[CacheGroupSpec], shapes: Sequence[StepShape]) -> list[int]:
    """Return the bytes that the cache of each group takes in the largest of these steps."""
    return [
        max(_blocks_per_request(group, shape) * len(shape.seq_lens) for shape in shapes) * group.block_bytes
        + READ_SLACK_BYTES
        for group in groups
    ]


def cache_pools(groups: Sequence[CacheGroupSpec], shapes: Sequence[StepShape]) -> list[NDArray[np.uint8]]:
    """Return memory for the caches of the largest of these steps, filled with numbers."""
    return [np.full(size, _CACHE_FILL, np.uint8) for size in pool_sizes(groups, shapes)]


def make_forward_batch(groups: Sequence[CacheGroupSpec], shape: StepShape, num_token_ids: int) -> ForwardBatch:
    """Return a step of this shape, of all token ids in turn. Blocks lie in no order, as after some time of serving."""
    query_lens, seq_lens = np.array(shape.query_lens, np.int32), np.array(shape.seq_lens, np.int32)
    tables = []
    for group in groups:
        per_request = _blocks_per_request(group, shape)
        order = np.random.default_rng(0).permutation(per_request * len(seq_lens))
        tables.append(order.astype(np.int32).reshape(len(seq_lens), per_request))
    token_ids = np.zeros((len(seq_lens), max(shape.seq_lens)), np.int32)
    in_step = np.arange(token_ids.shape[1]) < seq_lens[:, None]
    in_step &= np.arange(token_ids.shape[1]) >= (seq_lens - query_lens)[:, None]
    token_ids[in_step] = np.arange(query_lens.sum()) % num_token_ids
    seats = np.arange(len(seq_lens), dtype=np.int32)
    return ForwardBatch(SeatTables(token_ids, tuple(tables)), seats, seq_lens - query_lens, query_lens)


def _greedy_rows(shape: StepShape) -> SampleBatch:
    """Return the choice of the most probable token for the last rows of a step."""
    num_rows = sum(shape.query_lens)
    return SampleBatch(greedy_choices(np.arange(num_rows - shape.num_logit_rows, num_rows)), -1)


def _blocks_per_request(group: CacheGroupSpec, shape: StepShape) -> int:
    """Return how many blocks each request of a step has: all the same number; of a state group, one slot."""
    return -(-max(shape.seq_lens) // group.block_size) if isinstance(group, AttentionGroupSpec) else 1
