"""Writing a plan down: from requests that were given tokens and blocks to the arrays of a `SchedulerOutput`.

Decides nothing. Block tables are sent as differences: whole with a new seat, then only what changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from octavo.core.step import BlockAppend, BlockReplace, Move, PromptLogprobRows, SchedulerOutput, SeatAssignment

if TYPE_CHECKING:
    from octavo.core.block_pool import Block
    from octavo.core.request import Request
    from octavo.core.step import Int32Array


@dataclass(slots=True)
class PlannedStep:
    """A plan with the requests behind its numbers: what `update` needs to account for it."""

    plan: SchedulerOutput
    num_tokens: int
    requests: list[Request]
    """[R] in the plan's order."""
    samplers: list[Request]
    """[N] who gets the token of each logit row."""
    scorers: list[Request]
    """Who gets the logprobs of each entry of `prompt_logprob_rows`."""
    poolers: list[Request]
    """Who gets the sum of its hidden states."""
    forks: dict[Request, list[Request]]
    """Parent to the children that share its last prompt row."""


class PlanWriter:
    """Writes plans; who runs and samples changes seldom, and arrays that stay equal stay the same objects."""

    def __init__(self) -> None:
        self._arrays: dict[str, tuple[list[int], Int32Array]] = {}

    def write(
        self, step_id: int, released_seats: list[int], requests: list[Request], forks: dict[Request, list[Request]]
    ) -> PlannedStep:
        """Write down a step of `requests`, which have their tokens and blocks.

        Mutates: self; requests, whose table changes count as sent.
        """
        tables = _TableChanges()
        seats, computed, counts = [], [], []
        logit_rows, logit_seats, logit_positions, samplers = [], [], [], []
        scores: list[PromptLogprobRows] = []
        scorers: list[Request] = []
        poolers: list[Request] = []
        row = 0
        for request in requests:
            count, start = request.num_scheduled_tokens, request.num_computed_tokens
            seats.append(request.seat)
            computed.append(start)
            counts.append(count)
            tables.send(request)
            if request.num_scored_tokens < request.prompt_len:
                entry = _prompt_logprob_rows(request, row)
                if entry is not None:
                    scores.append(entry)
                    scorers.append(request)
            row += count
            if start + count == request.num_tokens and request.pooling is not None:
                poolers.append(request)
            elif start + count == request.num_tokens:
                for sampler in (request, *forks[request]) if request in forks else (request,):
                    if sampler is not request:
                        tables.send(sampler)
                    logit_rows.append(row - 1)
                    logit_seats.append(sampler.seat)
                    logit_positions.append(request.num_tokens)
                    samplers.append(sampler)
        plan = SchedulerOutput(
            step_id=step_id,
            released_seats=released_seats,
            assigned=tables.assigned,
            replaced=tables.replaced,
            appended=tables.appended,
            moves=tables.moves,
            seats=self._array("seats", seats),
            num_computed_tokens=np.array(computed, np.int32),
            num_scheduled_tokens=self._array("counts", counts),
            logit_rows=self._array("logit_rows", logit_rows),
            logit_seats=self._array("logit_seats", logit_seats),
            logit_positions=np.array(logit_positions, np.int32),
            prompt_logprob_rows=scores,
        )
        return PlannedStep(plan, row, requests, samplers, scorers, poolers, forks)

    def _array(self, name: str, values: list[int]) -> Int32Array:
        """Return the values as an array, the one of the last plan if they are the same."""
        last = self._arrays.get(name)
        if last is not None and last[0] == values:
            return last[1]
        array = np.array(values, np.int32)
        self._arrays[name] = (values, array)
        return array


@dataclass(slots=True)
class _TableChanges:
    """What the data plane does not know yet of seats and block tables."""

    assigned: list[SeatAssignment] = field(default_factory=list)
    replaced: list[BlockReplace] = field(default_factory=list)
    appended: list[BlockAppend] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def send(self, request: Request) -> None:
        """Add what is new of one running request's tables. Mutates: its tables, whose changes count as sent."""
        blocks = request.blocks
        assert blocks is not None, "a planned request runs"
        if blocks.num_sent == len(blocks.tables[0]) and not blocks.replaced:
            return
        if blocks.num_sent < 0:
            self.assigned.append(
                SeatAssignment(
                    seat=request.seat,
                    request_id=request.request_id,
                    token_ids=request.token_ids.tolist(),
                    prompt_len=request.prompt_len,
                    params=request.params,
                    seed=request.seed,
                    block_ids=(
                        *(list(map(_block_id, table)) for table in blocks.tables),
                        *([slot.block_id] for slot in blocks.slots),
                    ),
                    pooling=request.pooling,
                )
            )
        else:
            for group, index in blocks.replaced:
                block_id = _block_id(blocks.entry(group, index))
                self.replaced.append(BlockReplace(request.seat, group, index, block_id))
            if blocks.num_sent != len(blocks.tables[0]):
                for group, table in enumerate(blocks.tables):
                    block_ids = list(map(_block_id, table[blocks.num_sent :]))
                    self.appended.append(BlockAppend(request.seat, group, block_ids))
        self.moves += blocks.moves
        blocks.moves.clear()
        blocks.replaced.clear()
        blocks.num_sent = len(blocks.tables[0])


def _block_id(block: Block | None) -> int:
    """Return the id that the data plane knows the entry by."""
    return -1 if block is None else block.block_id


def _prompt_logprob_rows(request: Request, first_row: int) -> PromptLogprobRows | None:
    """Return the rows of this step that score prompt tokens not scored yet; the first row is flat row `first_row`."""
    start = request.num_computed_tokens
    first = max(request.num_scored_tokens, start + 1)
    count = min(start + request.num_scheduled_tokens + 1, request.prompt_len) - first
    if count <= 0:
        return None
    num_logprobs = request.params.prompt_logprobs or 0
    return PromptLogprobRows(request.seat, first_row + first - 1 - start, first, count, num_logprobs)
