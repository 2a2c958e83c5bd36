"""The oracle of Gated DeltaNet: the plain recurrence, token after token, and what each slot remembers.

Slots hold the state after the last token, not the open chunk of the native layout; what agrees is every result, and
what a slot holds at a border: a multiple of `OPEN_CHUNK` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo.cache_spec import OPEN_CHUNK, StateGroupSpec
from octavo.program.ops import CausalConv1d, GatedDeltaRule

if TYPE_CHECKING:
    from octavo.program.forward_batch import ForwardBatch

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

NORM_EPS = 1e-6
"""Added to the squared length of q and k."""


class ReferenceStates:
    """What the slots of one group hold, now and at their last border. A fresh slot is clear."""

    def __init__(self, spec: StateGroupSpec, num_slots: int) -> None:
        layers = (num_slots, spec.num_layers)
        self.spec = spec
        self.state: Doubles = np.zeros((*layers, spec.num_value_heads, spec.key_dim, spec.value_dim))
        self.conv: Doubles = np.zeros((*layers, spec.conv_width - 1, spec.conv_channels))
        self.border_state, self.border_conv = self.state.copy(), self.conv.copy()

    def clear(self, slot: int) -> None:
        """Start a slot from nothing."""
        for memory in (self.state, self.conv, self.border_state, self.border_conv):
            memory[slot] = 0

    def restore(self, source: int, target: int) -> None:
        """Bring `target` to the last border of `source`."""
        for memory in (self.state, self.border_state):
            memory[target] = self.border_state[source]
        for memory in (self.conv, self.border_conv):
            memory[target] = self.border_conv[source]

    def copy(self, source: int, target: int) -> None:
        """Make `target` equal to `source`."""
        for memory in (self.state, self.conv, self.border_state, self.border_conv):
            memory[target] = memory[source]


@dataclass(frozen=True, slots=True)
class _Rows:
    """One request's part of a step."""

    slot: int
    begin: int
    end: int
    first_position: int
    saves: dict[int, int]
    """Slot of each position after which a snapshot is to be left."""

    def borders(self, row: int) -> list[int]:
        """Return the slots that keep what there is after this row as their border."""
        position = self.first_position + row - self.begin + 1
        return [self.slot, *([self.saves[position]] if position in self.saves else [])] * (position % OPEN_CHUNK == 0)


def causal_conv1d(op: CausalConv1d, x: Floats, weight: Floats, states: ReferenceStates, batch: ForwardBatch) -> Floats:
    """Convolve row by row; `weight` is [width, channels], flat."""
    taps = weight.reshape(-1, x.shape[1])
    layer = op.cache.layer
    out = np.empty_like(x)
    for rows in _requests(batch, op.cache.group):
        for row in range(rows.begin, rows.end):
            inputs = np.concatenate([states.conv[rows.slot, layer], x[row : row + 1]])
            total = (inputs * taps).sum(axis=0)
            out[row] = total / (1 + np.exp(-total))
            states.conv[rows.slot, layer] = inputs[1:]
            for slot in rows.borders(row):
                states.border_conv[slot, layer] = inputs[1:]
    return out


def gated_delta_rule(
    op: GatedDeltaRule,
    inputs: Sequence[Floats],
    decay: Floats,
    dt_bias: Floats,
    states: ReferenceStates,
    batch: ForwardBatch,
) -> Floats:
    """Run the recurrence row by row, in double precision; `inputs` are qkv, b and a."""
    qkv, b, a = (x.astype(np.float64) for x in inputs)
    spec, layer = states.spec, op.cache.layer
    keys = spec.num_key_heads * spec.key_dim
    q, k, v = np.split(qkv, [keys, 2 * keys], axis=1)
    group_size = spec.num_value_heads // spec.num_key_heads
    heads = np.arange(spec.num_value_heads)
    key_head = heads % spec.num_key_heads if op.tiled_heads else heads // group_size
    q = _unit_heads(q, spec)[:, key_head] / np.sqrt(spec.key_dim)
    k = _unit_heads(k, spec)[:, key_head]
    v = v.reshape(len(v), spec.num_value_heads, spec.value_dim)
    beta = 1 / (1 + np.exp(-b))
    g = decay * np.logaddexp(0, a + dt_bias)
    out = np.empty((len(v), spec.num_value_heads, spec.value_dim), np.float32)
    for rows in _requests(batch, op.cache.group):
        for row in range(rows.begin, rows.end):
            state = states.state[rows.slot, layer] * np.exp(g[row])[:, None, None]
            update = beta[row][:, None] * (v[row] - np.einsum("hkv,hk->hv", state, k[row]))
            state = state + k[row][:, :, None] * update[:, None, :]
            out[row] = np.einsum("hkv,hk->hv", state, q[row])
            states.state[rows.slot, layer] = state
            for slot in rows.borders(row):
                states.border_state[slot, layer] = state
    return out.reshape(len(v), -1)


def _requests(batch: ForwardBatch, group: int) -> Iterator[_Rows]:
    starts = batch.query_start_loc.tolist()
    all_saves = [] if batch.state_saves is None else batch.state_saves.tolist()
    saves = [save for save in all_saves if save[1] == group]
    for request, seq_len in enumerate(batch.seq_lens.tolist()):
        begin, end = starts[request], starts[request + 1]
        yield _Rows(
            slot=int(batch.block_table(group, request)[0]),
            begin=begin,
            end=end,
            first_position=seq_len - (end - begin),
            saves={position: slot for r, _, position, slot in saves if r == request},
        )


def _unit_heads(x: Doubles, spec: StateGroupSpec) -> Doubles:
    heads = x.reshape(len(x), spec.num_key_heads, spec.key_dim)
    unit: Doubles = heads / np.sqrt((heads * heads).sum(axis=2, keepdims=True) + NORM_EPS)
    return unit
