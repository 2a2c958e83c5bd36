"""An executor without weights: the next token is a hash of all tokens before it; the cache is simulated slot by slot.

Each slot remembers the whole history that was written to it. Before a token is made, every slot its row can see must
hold the request's own history; so wrong sharing, lost copies and blocks reused too early fail at once, and any schedule
must give the same tokens. Recurrent states are simulated in fake_states.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from fake_states import GARBAGE, FakeStates, check_saves

from octavo.cache_spec import AttentionGroupSpec, CacheGroupSpec
from octavo.core.executor import CacheCapacity
from octavo.core.step import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from octavo.pooling_params import PoolingType

VOCAB = 50

Slot = tuple[int, int, int]
"""Group, block id, offset."""


def extend_history(history: int, token_id: int) -> int:
    """Return the hash of one more token; equal only for equal token sequences."""
    return hash((history, token_id))


def histories_of(token_ids: Sequence[int]) -> list[int]:
    """Return for each position the hash of all tokens up to it."""
    histories, history = [], 0
    for token_id in token_ids:
        history = extend_history(history, token_id)
        histories.append(history)
    return histories


def next_token(token_ids: Sequence[int], seed: int) -> int:
    """The model: what follows `token_ids`."""
    return hash((histories_of(token_ids)[-1], seed)) % VOCAB


@dataclass
class Seat:
    """What a data plane keeps of a request."""

    request_id: str
    token_ids: list[int]
    seed: int
    tables: list[list[int]]
    histories: list[int] = field(default_factory=list)
    pooling: PoolingType | None = None
    prompt_len: int = 0
    hidden_sum: float = 0.0
    """Of the rows so far that are pooled."""


def hidden_state(history: int) -> float:
    """Return the one number that stands for the hidden state of a token with this history."""
    return float(history % 1009)


class FakeExecutor:
    """Computes at `sample`, unless told to fail."""

    def __init__(self, specs: Sequence[CacheGroupSpec], capacity: CacheCapacity) -> None:
        self.specs = specs
        self._capacity = capacity
        self._paged = {group: spec for group, spec in enumerate(specs) if isinstance(spec, AttentionGroupSpec)}
        states = [group for group in range(len(specs)) if group not in self._paged]
        self.states = FakeStates(states, capacity.num_blocks, extend_history)
        self.seats: dict[int, Seat] = {}
        self.slots: dict[Slot, int] = {}
        self.plans: list[SchedulerOutput] = []
        self.released: list[tuple[int, int]] = []
        self.is_shut_down = False
        self.on_submit: Callable[[], None] = lambda: None
        self.is_cancelled = False
        self.fault: Callable[[SchedulerOutput, str], None] = lambda *_: None
        """Raises to make the step fail at a stage: "submit" before the plan is read, "body" after some writes."""
        self.row_error: Callable[[Seat, int], str | None] = lambda *_: None
        """Reason for which the token at a position cannot be sampled."""
        self.score_error: Callable[[Seat, int], str | None] = lambda *_: None
        """Reason for which the prompt token at a position cannot be scored."""
        self.random = random.Random(0)
        self.broken: AssertionError | LookupError | None = None
        """A promise of the control plane that a step did not keep; the engine takes it for a step that failed."""

    def capacity(self) -> CacheCapacity:
        return self._capacity

    def submit(self, plan: SchedulerOutput) -> SchedulerOutput:
        self.on_submit()
        self.plans.append(plan)
        self.fault(plan, "submit")
        return plan

    def sample(self, handle: SchedulerOutput, masks: object | None) -> ModelRunnerOutput:
        assert masks is None
        try:
            return self._compute(handle)
        except (AssertionError, LookupError) as error:
            self.broken = error
            raise

    def _compute(self, handle: SchedulerOutput) -> ModelRunnerOutput:
        self._read(handle)
        rows = self._rows(handle)
        try:
            self.fault(handle, "body")
        except BaseException:
            self._scribble(rows)
            raise
        self._write(rows)
        self._run_states(handle)
        for seat, position in rows:
            self._check_visible(seat, position)
        return self._sample(handle, rows)

    @property
    def progress(self) -> int:
        return 0

    def cancel(self) -> None:
        self.is_cancelled = True

    def release_blocks(self, group: int, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.released.append((group, block_id))
            self.states.drop(group, block_id)
            for offset in range(self.specs[group].block_size):
                self.slots.pop((group, block_id, offset), None)

    def shutdown(self) -> None:
        self.is_shut_down = True

    def scheduled_tokens(self, plan: SchedulerOutput) -> list[tuple[str, list[int]]]:
        """Return the request id and the tokens of each member of a plan that was read."""
        members = zip(plan.seats, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True)
        return [(self.seats[seat].request_id, self.seats[seat].token_ids[at : at + n]) for seat, at, n in members]

    def _read(self, plan: SchedulerOutput) -> None:
        """Apply a plan's changes in the order that its docstring gives."""
        for seat in plan.released_seats:
            self.seats.pop(seat, None)
        for new in plan.assigned:
            tables = [list(table) for table in new.block_ids]
            seat = Seat(new.request_id, list(new.token_ids), new.seed, tables)
            seat.pooling, seat.prompt_len = new.pooling, new.prompt_len
            self.seats[new.seat] = seat
            self.seats[new.seat].histories = histories_of(new.token_ids)
        for change in plan.replaced:
            self.seats[change.seat].tables[change.group][change.index] = change.block_id
        for more in plan.appended:
            self.seats[more.seat].tables[more.group].extend(more.block_ids)
        for move in plan.moves:
            if move.group not in self._paged:
                self.states.apply(move)
                continue
            assert move.kind == "copy_block"
            for offset in range(self.specs[move.group].block_size):
                source = self.slots.get((move.group, move.source, offset), GARBAGE)
                self.slots[move.group, move.target, offset] = source

    def _rows(self, plan: SchedulerOutput) -> list[tuple[Seat, int]]:
        """Return the seat and position of each row."""
        assert len(set(plan.seats.tolist())) == len(plan.seats) > 0, "a request is scheduled once"
        assert (plan.num_scheduled_tokens > 0).all()
        rows = []
        for seat, start, count in zip(plan.seats, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True):
            rows += [(self.seats[seat], position) for position in range(start, start + count)]
        assert plan.num_scheduled_tokens.sum() == len(rows)
        return rows

    def _slot(self, seat: Seat, group: int, position: int) -> Slot:
        block_size = self.specs[group].block_size
        block_id = seat.tables[group][position // block_size]
        assert 0 <= block_id < self._capacity.num_blocks[group], f"position {position} has no block"
        return group, block_id, position % block_size

    def _write(self, rows: list[tuple[Seat, int]]) -> None:
        written: set[Slot] = set()
        for seat, position in rows:
            for group in self._paged:
                slot = self._slot(seat, group, position)
                assert slot not in written, "two rows write to one slot"
                written.add(slot)
                self.slots[slot] = seat.histories[position]

    def _run_states(self, plan: SchedulerOutput) -> None:
        seated = [self.seats[seat] for seat in plan.seats]
        slots = {(group, seat.tables[group][0]) for group in self.states.groups for seat in seated}
        check_saves(plan, self.specs[0].block_size, slots)
        members = zip(seated, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True)
        for row, (seat, start, count) in enumerate(members):
            for group in self.states.groups:
                (slot,) = seat.tables[group]
                assert (group, slot) in slots, "a state is written by one request"
                slots.discard((group, slot))
                saves = {
                    save.position: save.slot for save in plan.state_saves if (save.request, save.group) == (row, group)
                }
                found = self.states.run(group, slot, int(start), seat.token_ids[start : start + count], saves)
                assert found == seat.histories[start : start + count], f"{seat.request_id}: the state is not its own"

    def _scribble(self, rows: list[tuple[Seat, int]]) -> None:
        """Leave what a step leaves that stopped half-way."""
        for seat, position in rows:
            for group in self.states.groups:
                self.states.scribble(group, seat.tables[group][0])
            for group in self._paged:
                value = self.random.choice([GARBAGE, seat.histories[position]])
                self.slots[self._slot(seat, group, position)] = value

    def _check_visible(self, seat: Seat, position: int) -> None:
        for group, spec in self._paged.items():
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            for seen in range(first, position + 1):
                found = self.slots.get(self._slot(seat, group, seen), GARBAGE)
                assert found == seat.histories[seen], (
                    f"{seat.request_id}: position {seen} of group {group} is not its own"
                )

    def _sample(self, plan: SchedulerOutput, rows: list[tuple[Seat, int]]) -> ModelRunnerOutput:
        result = ModelRunnerOutput([], [], step_seconds=0.01, native_seconds=0.005)
        logit_rows = zip(plan.logit_rows, plan.logit_seats, plan.logit_positions, strict=True)
        for index, (row, seat_number, position) in enumerate(logit_rows):
            seat = self.seats[seat_number]
            assert rows[row][1] + 1 == position == len(seat.token_ids), "the row samples the seat's next token"
            assert rows[row][0].histories[position - 1] == seat.histories[-1], "a fork shares the whole prompt"
            reason = self.row_error(seat, int(position))
            if reason is not None:
                result.row_errors[index] = reason
            token_id = next_token(seat.token_ids, seat.seed)
            seat.token_ids.append(token_id)
            seat.histories.append(extend_history(seat.histories[-1], token_id))
            result.token_ids.append(token_id)
            result.logprobs.append(None)
        for index, scored in enumerate(plan.prompt_logprob_rows):
            seat = self.seats[scored.seat]
            entries = []
            for step in range(scored.count):
                row_seat, position = rows[scored.first_row + step]
                assert row_seat is seat
                assert position + 1 == scored.first_position + step, "the row before a token scores it"
                entries.append(TokenLogprobs([seat.token_ids[position + 1]], [-1.0], 1))
                reason = self.score_error(seat, position + 1)
                if reason is not None:
                    result.row_errors[len(result.token_ids) + index] = reason
            result.prompt_logprobs[index] = entries
        self._pool(plan, result)
        return result

    def _pool(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        for number, start, count in zip(plan.seats, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True):
            seat = self.seats[number]
            if seat.pooling is None:
                continue
            assert number not in plan.logit_seats, "a pooled request samples nothing"
            rows = range(start, start + count)
            seat.hidden_sum += sum(
                hidden_state(seat.histories[row])
                for row in rows
                if seat.pooling == "mean" or row == seat.prompt_len - 1
            )
            if start + count == seat.prompt_len:
                reason = self.row_error(seat, seat.prompt_len)
                if reason is not None:
                    number_of_sum = len(result.token_ids) + len(result.prompt_logprobs) + len(result.sums)
                    result.row_errors[number_of_sum] = reason
                result.sums.append(np.array([seat.hidden_sum]))
