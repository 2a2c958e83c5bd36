"""Slots of recurrent states, simulated: each row is computed from what its slot holds, never from the request itself.

A slot is a hash of all tokens before its border, and what the rows since then left. So a state that was not cleared,
was restored from the wrong place, copied too late or saved too early makes a history that no request has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from octavo.cache_spec import OPEN_CHUNK
from octavo.core.step import Move, SchedulerOutput

GARBAGE = -1


@dataclass
class State:
    """One slot. Histories are hashes of all tokens up to a place."""

    border: int = GARBAGE
    """At the last multiple of `OPEN_CHUNK`: S."""
    border_conv: int = GARBAGE
    conv: int = GARBAGE
    """Before the next token."""
    open_rows: list[int] = field(default_factory=lambda: [GARBAGE] * OPEN_CHUNK)

    def copy(self) -> State:
        return replace(self, open_rows=list(self.open_rows))


class FakeStates:
    """All slots of all state groups."""

    def __init__(self, groups: Sequence[int], num_blocks: Sequence[int], extend: Callable[[int, int], int]) -> None:
        self.groups = list(groups)
        self._num_blocks = num_blocks
        self._extend = extend
        self._slots: dict[tuple[int, int], State] = {}

    def apply(self, move: Move) -> None:
        assert 0 <= move.target < self._num_blocks[move.group]
        target = self._slots.setdefault((move.group, move.target), State())
        if move.kind == "clear_state":
            assert move.source == -1
            target.border = target.border_conv = target.conv = 0
            return
        source = self._slots[move.group, move.source]
        if move.kind == "copy_state":
            self._slots[move.group, move.target] = source.copy()
        else:
            assert move.kind == "restore_state"
            target.border, target.border_conv, target.conv = source.border, source.border_conv, source.border_conv

    def run(self, group: int, slot: int, start: int, token_ids: Sequence[int], saves: dict[int, int]) -> list[int]:
        """Compute the rows of one request from position `start`; return each one's history.

        Args:
            saves: position to the slot of a snapshot.
        """
        state = self._slots[group, slot]
        histories = []
        for position, token_id in enumerate(token_ids, start):
            offset = position % OPEN_CHUNK
            before = state.open_rows[offset - 1] if offset else state.border
            if state.conv != before:
                before = GARBAGE
            state.conv = state.open_rows[offset] = self._extend(before, token_id)
            histories.append(state.conv)
            if offset == OPEN_CHUNK - 1:
                state.border = state.border_conv = state.conv
            if position + 1 in saves:
                assert state.border == state.conv, "a snapshot lies at a border"
                target = self._slots.setdefault((group, saves[position + 1]), State())
                target.border, target.border_conv = state.border, state.border_conv
        return histories

    def scribble(self, group: int, slot: int) -> None:
        self._slots[group, slot] = State()

    def drop(self, group: int, slot: int) -> None:
        self._slots.pop((group, slot), None)


def check_saves(plan: SchedulerOutput, block_size: int, slots_of_seats: set[tuple[int, int]]) -> None:
    """Assert that the snapshots of a plan lie inside its rows, in order, in slots of their own."""
    targets = {(save.group, save.slot) for save in plan.state_saves}
    assert len(targets) == len(plan.state_saves), "two snapshots in one slot"
    assert not targets & slots_of_seats, "a snapshot in a request's slot"
    order = [(save.request, save.position) for save in plan.state_saves]
    assert order == sorted(order)
    for save in plan.state_saves:
        start, count = int(plan.num_computed_tokens[save.request]), int(plan.num_scheduled_tokens[save.request])
        assert save.position % block_size == 0
        assert start < save.position <= start + count
