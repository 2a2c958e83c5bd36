"""Runs a Program in native code: the whole body in one call, head and pool in slices, on a pool of threads.

Not here: what an op computes (csrc), which instructions a program becomes (`lowering.py`), where values live
(`planner.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.cache_spec import AttentionGroupSpec, CacheGroupSpec
from octavo.config import LogprobsMode
from octavo.errors import EngineDeadError, StepCancelledError
from octavo.native import kernels
from octavo.program.forward_batch import (
    RESULT_DTYPE,
    ForwardBatch,
    Int32Array,
    SampleBatch,
    SampleOutput,
    SeatTables,
)
from octavo.program.instructions import Buffer, Instruction, LoweredProgram, Operand, ProgramWeights
from octavo.program.lowering import lower
from octavo.program.ops import Program
from octavo.program.planner import Interval, Plan, plan_arena


class NativeProgram:
    """A program bound to its weights and cache memory. One call at a time; `cancel` from any thread.

    A failed or cancelled call leaves the program usable; the rows it was to write are undefined.
    """

    def __init__(
        self,
        program: Program,
        weights: ProgramWeights,
        *,
        cache_groups: Sequence[CacheGroupSpec],
        pools: Sequence[npt.NDArray[np.uint8]],
        max_num_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        num_threads: int,
        activation_quantization: bool = True,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        isa_module: Any = None,
    ) -> None:
        """Lower the program, plan its memory and start the threads.

        Args:
            pools: per cache group, writable memory of its blocks in id order.
            max_num_tokens: T of the largest batch.
            isa_module: the kernels to use, by default those of `native.kernels()`.
        """
        module = kernels() if isa_module is None else isa_module
        lowered = lower(program, weights, activation_quantization=activation_quantization)
        plan = _plan(lowered, max_num_tokens, module.HEAD_SLICE)
        self.stage_ops = lowered.stage_ops
        """Per stage, the ops that it computes, by index over body and head."""
        self._vocab_size, self._hidden_size = program.vocab_size, program.hidden_size
        self._logprobs_mode = logprobs_mode
        self._process = os.getpid()
        self._main_thread = threading.main_thread().ident
        self._native: Any = module.Program(
            num_threads=num_threads,
            arena_bytes=plan.num_bytes,
            max_num_tokens=max_num_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        )
        for spec, pool in zip(cache_groups, pools, strict=True):
            self._add_group(spec, pool)
        self._emit(lowered, plan.offsets)
        self._tables: SeatTables | None = None
        """Those that native code has."""
        self._is_closed = False

    def run(self, batch: ForwardBatch) -> float:
        """Compute the hidden rows of a batch and write their keys and values; return the seconds in native code.

        Raises:
            ValueError: an index of the batch is out of bounds; nothing was computed.
            StepCancelledError: after `cancel`.
        """
        native = self._usable()
        if batch.tables is not self._tables:
            native.set_tables(batch.tables.token_ids, list(batch.tables.blocks))
            self._tables = batch.tables
        seconds = native.run(
            batch.seats,
            batch.num_computed_tokens,
            batch.num_scheduled_tokens,
            batch.state_saves,
            self._is_main_thread(),
        )
        return _completed(seconds)

    def sample(self, batch: SampleBatch) -> SampleOutput:
        """Compute the logits of rows of the last `run`, and choose or score a token for each.

        Raises: as `run`.
        """
        num_rows, num_top = len(batch.choices), batch.max_logprobs
        output = SampleOutput(np.empty(num_rows, RESULT_DTYPE))
        if num_top >= 0:
            output.top_ids = np.zeros((num_rows, num_top), np.int32)
            output.top_logprobs = np.zeros((num_rows, num_top), np.float32)
        if batch.score_ids is not None:
            output.scores = np.zeros(len(batch.score_ids), np.float32)
        seconds = self._usable().sample(
            batch.choices,
            batch.edits,
            batch.allowed,
            batch.score_ids,
            output.results,
            output.top_ids,
            output.top_logprobs,
            output.scores,
            self._logprobs_mode,
            self._is_main_thread(),
        )
        output.native_seconds = _completed(seconds)
        return output

    def logits(self, rows: Int32Array) -> npt.NDArray[np.float32]:
        """Return the logits [N, V] of rows of the last `run`, before any edit."""
        out = np.zeros((len(rows), self._vocab_size), np.float32)
        _completed(self._usable().logits(rows, out, self._is_main_thread()))
        return out

    def pool(self, rows: Int32Array, targets: Int32Array, sums: npt.NDArray[np.float64]) -> float:
        """Add final hidden states of rows of the last `run` to rows of `sums` [any, E], one after the other.

        Args:
            targets: the sum that each of the rows belongs to.

        Returns the seconds in native code. Raises: as `run`; the sums are then undefined.
        """
        return _completed(self._usable().pool(rows, targets, sums, self._is_main_thread()))

    def time_stages(self, on: bool) -> None:
        """From the next call on, note how long each stage takes, or no more."""
        self._usable().time_stages(on)

    def stage_seconds(self) -> list[float]:
        """Return what each stage took in the last `run` and the last `sample`, and, last, the choice of tokens."""
        seconds: list[float] = self._usable().stage_seconds()
        return seconds

    def cancel(self) -> None:
        """Make the running call raise `StepCancelledError` soon; without one, do nothing. Safe in a signal handler."""
        self._native.cancel()

    @property
    def progress(self) -> int:
        """A counter that grows while a call advances."""
        return int(self._native.progress)

    @property
    def num_saturated(self) -> int:
        """Keys and values that did not fit a float16 or int8 cache so far, stored as float16's largest number."""
        return int(self._native.num_saturated)

    @property
    def num_screened(self) -> int:
        """Logit rows so far of which only the largest logits were computed, found by estimates of all."""
        return int(self._native.num_screened)

    @property
    def peak_bytes(self) -> int:
        """Bytes of activations and scratch that the largest step can touch, and of a head's estimates."""
        return int(self._native.peak_bytes)

    def close(self) -> None:
        """Stop the threads and free the memory, after cancelling a running call. Idempotent."""
        self._is_closed = True
        if os.getpid() == self._process:
            self._native.close()

    def _is_main_thread(self) -> bool:
        """Whether Python runs signal handlers on this thread, which then must look for signals during a long call."""
        return threading.get_ident() == self._main_thread

    def _usable(self) -> Any:
        if self._is_closed:
            raise EngineDeadError("The program is closed; load the model again.")
        if os.getpid() != self._process:
            raise EngineDeadError(
                f"The program belongs to process {self._process} and its threads did not survive the fork into "
                f"{os.getpid()}; load the model in the child, or start it with the 'spawn' method."
            )
        return self._native

    def _add_group(self, spec: CacheGroupSpec, pool: npt.NDArray[np.uint8]) -> None:
        if isinstance(spec, AttentionGroupSpec):
            self._native.add_group(pool, spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.block_size, spec.dtype)
            return
        self._native.add_state_group(
            pool,
            num_layers=spec.num_layers,
            num_key_heads=spec.num_key_heads,
            num_value_heads=spec.num_value_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            conv_width=spec.conv_width,
            conv_channels=spec.conv_channels,
            keeps_border=spec.keeps_border,
        )

    def _emit(self, lowered: LoweredProgram, offsets: Sequence[int]) -> None:
        """Send the instructions to native code, with addresses for operands."""

        def resolve(argument: Any) -> Any:
            if not isinstance(argument, Operand):
                return argument
            buffer = lowered.buffers[argument.buffer]
            return offsets[argument.buffer] + argument.column * buffer.element_bytes, buffer.stride

        def emit(instructions: Sequence[Instruction]) -> None:
            for instruction in instructions:
                arguments = {name: resolve(argument) for name, argument in instruction.arguments.items()}
                getattr(self._native, instruction.method)(**arguments)

        emit(lowered.body)
        self._native.start_head()
        emit(lowered.head)
        self._native.start_pool()
        emit(lowered.pool)
        pooled = {} if lowered.pooled is None else {"pooled": resolve(lowered.pooled), "hidden_size": self._hidden_size}
        self._native.finish(resolve(lowered.logits), self._vocab_size, **pooled)


def activation_bytes(
    program: Program, weights: ProgramWeights, *, max_num_tokens: int, activation_quantization: bool = True
) -> int:
    """Return the bytes of all values of the largest step, for weights of which only shape and kind need be known."""
    lowered = lower(program, weights, activation_quantization=activation_quantization)
    return _plan(lowered, max_num_tokens, kernels().HEAD_SLICE).num_bytes


def _plan(lowered: LoweredProgram, max_num_tokens: int, head_slice: int) -> Plan:
    max_rows = {"T": max_num_tokens, "N": head_slice}
    return plan_arena([_interval(buffer, max_rows[buffer.rows]) for buffer in lowered.buffers])


def _interval(buffer: Buffer, max_rows: int) -> Interval:
    return Interval(max_rows * buffer.per_row * buffer.stride * buffer.element_bytes, buffer.first, buffer.last)


def _completed(seconds: float | None) -> float:
    if seconds is None:
        raise StepCancelledError("The step was cancelled before it was done.")
    return seconds
