"""Arrays by seat, and the flat batch built from them, against a naive model with lists."""

from __future__ import annotations

import random

import numpy as np
import pytest
from runner_fakes import VOCAB, make_assignment, make_plan

from octavo.core.step import BlockAppend, BlockReplace, SchedulerOutput, StateSave
from octavo.runner.input_batch import InputBatch

MAX_MODEL_LEN = 200


def make_inputs(block_sizes: tuple[int | None, ...] = (16,), max_num_seqs: int = 8) -> InputBatch:
    return InputBatch(
        max_num_seqs=max_num_seqs, max_model_len=MAX_MODEL_LEN, block_sizes=block_sizes, vocab_size=VOCAB, hidden_size=8
    )


class NaiveSeats:
    """Lists per seat, changed one entry at a time, and a batch built token by token."""

    def __init__(self, block_sizes: tuple[int, ...]) -> None:
        self.block_sizes = block_sizes
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[list[int]]] = {}

    def apply(self, plan: SchedulerOutput) -> None:
        for seat in plan.released_seats:
            del self.tokens[seat], self.tables[seat]
        for entry in plan.assigned:
            self.tokens[entry.seat] = list(entry.token_ids)
            self.tables[entry.seat] = [list(ids) for ids in entry.block_ids]
        for change in plan.replaced:
            self.tables[change.seat][change.group][change.index] = change.block_id
        for change in plan.appended:
            self.tables[change.seat][change.group] += change.block_ids

    def rows(self, plan: SchedulerOutput) -> list[tuple[int, int, list[int]]]:
        """Return (token id, position, slot per group) of each row."""
        rows = []
        for seat, computed, scheduled in zip(
            plan.seats, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True
        ):
            for position in range(computed, computed + scheduled):
                slots = [
                    table[position // size] * size + position % size
                    for table, size in zip(self.tables[int(seat)], self.block_sizes, strict=True)
                ]
                rows.append((self.tokens[int(seat)][position], position, slots))
        return rows


class RandomControlPlane:
    """Makes valid plans at random: requests come, grow, lose blocks to a window, and go."""

    def __init__(self, seed: int, seats: NaiveSeats, max_num_seqs: int) -> None:
        self.random = random.Random(seed)
        self.seats = seats
        self.max_num_seqs = max_num_seqs
        self.computed: dict[int, int] = {}
        self.next_block = 0

    def plan(self) -> SchedulerOutput:
        released = [seat for seat in self.computed if self.random.random() < 0.08]
        for seat in released:
            del self.computed[seat]
        free = [seat for seat in range(self.max_num_seqs) if seat not in self.computed]
        assigned = []
        for seat in self.random.sample(free, min(len(free), self.random.randint(0, 2))):
            token_ids = [self.random.randrange(VOCAB) for _ in range(self.random.randint(1, 90))]
            cached = self.random.randrange(len(token_ids))
            blocks = [self.blocks(-(-cached // size)) for size in self.seats.block_sizes]
            assigned.append(make_assignment(seat, token_ids, *blocks))
            self.computed[seat] = cached
        plan = make_plan(released_seats=released, assigned=assigned)
        self.seats.apply(plan)
        plan.replaced = self.replacements()
        self.schedule(plan)
        after = make_plan(replaced=plan.replaced, appended=plan.appended)
        self.seats.apply(after)
        return plan

    def blocks(self, count: int) -> list[int]:
        self.next_block += count
        return list(range(self.next_block - count, self.next_block))

    def replacements(self) -> list[BlockReplace]:
        replaced = []
        for seat, computed in self.computed.items():
            for group, size in enumerate(self.seats.block_sizes):
                if self.random.random() < 0.1 and computed >= size:
                    replaced.append(BlockReplace(seat, group, self.random.randrange(computed // size), -1))
                if self.random.random() < 0.1 and computed % size:
                    replaced.append(BlockReplace(seat, group, computed // size, self.blocks(1)[0]))
        return replaced

    def schedule(self, plan: SchedulerOutput) -> None:
        rows = []
        for seat in self.random.sample(sorted(self.computed), self.random.randint(0, len(self.computed))):
            computed = self.computed[seat]
            scheduled = self.random.randint(0, min(40, len(self.seats.tokens[seat]) - computed))
            if scheduled == 0:
                continue
            rows.append((seat, computed, scheduled))
            for group, size in enumerate(self.seats.block_sizes):
                missing = -(-(computed + scheduled) // size) - len(self.seats.tables[seat][group])
                if missing > 0:
                    plan.appended.append(BlockAppend(seat, group, self.blocks(missing)))
            self.computed[seat] = computed + scheduled
        plan.seats, plan.num_computed_tokens, plan.num_scheduled_tokens = (
            np.array(rows, np.int32).reshape(-1, 3).T.copy()
        )

    def generate(self, inputs: InputBatch) -> None:
        """Append a token to every request whose tokens are all computed and that has room."""
        done = [s for s, n in self.computed.items() if n == len(self.seats.tokens[s]) < MAX_MODEL_LEN]
        for seat in done:
            token_id = self.random.randrange(VOCAB)
            inputs.append_token(seat, len(self.seats.tokens[seat]), token_id)
            self.seats.tokens[seat].append(token_id)


@pytest.mark.parametrize("block_sizes", [(16,), (16, 64), (32, 16)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_random_plans_build_the_batch_of_the_naive_model(block_sizes: tuple[int, ...], seed: int) -> None:
    inputs, seats = make_inputs(block_sizes), NaiveSeats(block_sizes)
    control = RandomControlPlane(seed, seats, max_num_seqs=8)
    num_rows = 0
    for _ in range(120):
        plan = control.plan()
        inputs.apply(plan)
        if len(plan.seats):
            batch = inputs.batch(plan)
            expected = seats.rows(plan)
            assert batch.token_ids.tolist() == [row[0] for row in expected]
            assert batch.positions.tolist() == [row[1] for row in expected]
            for group, size in enumerate(block_sizes):
                assert batch.slots(group, size).tolist() == [row[2][group] for row in expected]
            starts = np.concatenate([[0], np.cumsum(plan.num_scheduled_tokens)])
            assert batch.query_start_loc.tolist() == starts.tolist()
            assert batch.seq_lens.tolist() == (plan.num_computed_tokens + plan.num_scheduled_tokens).tolist()
            for request, seat in enumerate(plan.seats.tolist()):
                for group, size in enumerate(block_sizes):
                    used = -(-int(batch.seq_lens[request]) // size)
                    table = batch.block_table(group, request)[:used].tolist()
                    assert table == seats.tables[seat][group][:used]
            num_rows += len(expected)
        control.generate(inputs)
    assert num_rows > 500


@pytest.mark.parametrize("scheduled", [(1, 1, 1), (1, 5, 2)], ids=["decode", "mixed"])
def test_batch_arrays_have_the_types_that_native_code_takes(scheduled: tuple[int, ...]) -> None:
    inputs = make_inputs((16, 32))
    assigned = [make_assignment(seat, list(range(20)), [seat, seat + 3], [seat]) for seat in range(3)]
    plan = make_plan([(seat, 3, count) for seat, count in enumerate(scheduled)], assigned=assigned)
    inputs.apply(plan)
    batch = inputs.batch(plan)
    arrays = [batch.tables.token_ids, *batch.tables.blocks, batch.seats, batch.num_computed_tokens]
    arrays += [batch.num_scheduled_tokens, batch.token_ids, batch.positions, batch.query_start_loc, batch.seq_lens]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    assert all(array.flags.c_contiguous for array in arrays)


def test_a_seat_released_and_assigned_in_one_plan_holds_the_new_request() -> None:
    inputs = make_inputs()
    inputs.apply(make_plan(assigned=[make_assignment(2, [1, 2, 3, 4], [7])]))
    plan = make_plan([(2, 0, 2)], released_seats=[2], assigned=[make_assignment(2, [8, 9], [5])])
    inputs.apply(plan)
    batch = inputs.batch(plan)
    assert batch.token_ids.tolist() == [8, 9]
    assert batch.slots(0, 16).tolist() == [80, 81]


def test_blocks_append_behind_those_of_the_assignment_in_the_same_plan() -> None:
    inputs = make_inputs()
    plan = make_plan(
        [(0, 16, 20)],
        assigned=[make_assignment(0, list(range(40)), [4])],
        appended=[BlockAppend(0, 0, [9]), BlockAppend(0, 0, [2])],
    )
    inputs.apply(plan)
    assert inputs.batch(plan).block_table(0, 0)[:3].tolist() == [4, 9, 2]


def test_a_request_may_fill_the_whole_context() -> None:
    inputs = make_inputs()
    blocks = list(range(-(-MAX_MODEL_LEN // 16)))
    plan = make_plan([(0, 0, MAX_MODEL_LEN)], assigned=[make_assignment(0, [1] * MAX_MODEL_LEN, blocks)])
    inputs.apply(plan)
    assert inputs.batch(plan).slots(0, 16).tolist() == list(range(MAX_MODEL_LEN))


def test_a_state_group_has_a_table_of_one_slot() -> None:
    inputs = make_inputs((16, None))
    assigned = [make_assignment(seat, list(range(40)), [1, 2, 3], [seat + 5]) for seat in range(2)]
    plan = make_plan([(1, 0, 20), (0, 16, 1)], assigned=assigned, replaced=[BlockReplace(0, 1, 0, 9)])
    inputs.apply(plan)
    batch = inputs.batch(plan)
    assert [batch.block_table(1, request).tolist() for request in range(2)] == [[6], [9]]
    assert batch.slots(0, 16).tolist() == [*range(16, 36), 32]


def test_snapshots_to_leave_are_rows_of_an_array() -> None:
    inputs = make_inputs((16, None))
    plan = make_plan([(0, 0, 40)], assigned=[make_assignment(0, list(range(40)), [1, 2, 3], [5])])
    inputs.apply(plan)
    assert inputs.batch(plan).state_saves is None
    plan.state_saves = [StateSave(0, 1, 16, 7), StateSave(0, 1, 32, 8)]
    saves = inputs.batch(plan).state_saves
    assert saves.tolist() == [[0, 1, 16, 7], [0, 1, 32, 8]]
    assert saves.dtype == np.int32
    assert saves.flags.c_contiguous
