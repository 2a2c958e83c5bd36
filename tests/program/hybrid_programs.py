"""Small programs with Gated DeltaNet and gated attention, and what a scheduler does to their slots, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tiny_programs import BLOCK_SIZE, MAX_MODEL_LEN, NUM_BLOCKS, Weights, make_weight, make_weights

from octavo.cache_spec import AttentionGroupSpec, StateGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.forward_batch import ForwardBatch, SeatTables
from octavo.program.ops import CacheRef, Program, Value

VOCAB, HIDDEN = 61, 48
STATE_GROUP = 1


@dataclass(frozen=True)
class DeltaShape:
    """Of the recurrent layers: one attention layer stands between two of them."""

    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 16
    value_dim: int = 16
    conv_width: int = 4
    tiled_heads: bool = False
    keeps_border: bool = True

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


def make_hybrid(shape: DeltaShape = DeltaShape()) -> Program:
    attention = AttentionGroupSpec("full", 1, 2, 16, "float32", BLOCK_SIZE)
    state = StateGroupSpec(
        num_layers=2,
        num_key_heads=shape.key_heads,
        num_value_heads=shape.value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        conv_width=shape.conv_width,
        conv_channels=shape.conv_channels,
        block_size=BLOCK_SIZE,
        keeps_border=shape.keeps_border,
    )
    b = ProgramBuilder([attention, state], max_model_len=MAX_MODEL_LEN)
    embed = make_weight("embed", VOCAB, HIDDEN)
    x = _delta_layer(b, b.embedding(embed), shape, 0)
    x = _attention_layer(b, x)
    x = _delta_layer(b, x, shape, 1)
    return b.finish(b.linear(b.rms_norm(b.gather_rows(x), make_weight("norm", HIDDEN), eps=1e-6), embed))


def _delta_layer(b: ProgramBuilder, x: Value, shape: DeltaShape, layer: int) -> Value:
    cache = CacheRef(STATE_GROUP, layer)
    heads, values = shape.value_heads, shape.value_heads * shape.value_dim
    widths = (shape.conv_channels, values, heads, heads)
    h = b.rms_norm(x, make_weight(f"{layer}.input_norm", HIDDEN), eps=1e-6)
    qkv, z, beta, alpha = b.linear_split(h, make_weight(f"{layer}.in", sum(widths), HIDDEN, parts=widths), widths)
    qkv = b.causal_conv1d(qkv, make_weight(f"{layer}.conv", shape.conv_width * shape.conv_channels), cache)
    decay, dt_bias = (make_weight(f"{layer}.{name}", heads) for name in ("decay", "dt_bias"))
    out = b.gated_delta_rule(qkv, beta, alpha, decay, dt_bias, cache, tiled_heads=shape.tiled_heads)
    out = b.mul_by_gate(b.rms_norm(out, make_weight(f"{layer}.norm", shape.value_dim), eps=1e-6), z, "silu")
    return b.linear(out, make_weight(f"{layer}.out", HIDDEN, values), add_to=x)


def _attention_layer(b: ProgramBuilder, x: Value) -> Value:
    q, gate, k, v = b.linear_split(x, make_weight("qkv", 192, HIDDEN), (64, 64, 32, 32))
    b.kv_write(k, v, CacheRef(0, 0))
    out = b.mul_by_gate(b.paged_attention(q, CacheRef(0, 0), scale=0.25), gate, "sigmoid")
    return b.linear(out, make_weight("o", HIDDEN, 64), add_to=x)


def make_hybrid_weights(program: Program, module: Any) -> Weights:
    """Random weights; decays are negative, from slow to fast."""
    weights = make_weights(program, module)
    rng = np.random.default_rng(5)
    for name in weights.vectors:
        size = weights.vectors[name].shape
        if name.endswith("decay"):
            weights.vectors[name] = -np.exp(rng.uniform(-3, 1.5, size)).astype(np.float32)
        elif name.endswith(("conv", "dt_bias")):
            weights.vectors[name] = rng.standard_normal(size, dtype=np.float32) * np.float32(0.7)
        weights.values[name] = weights.vectors[name]
    return weights


@dataclass(frozen=True)
class Part:
    """Rows [start, end) of a request that owns a slot, and snapshots to leave: (position, slot)."""

    slot: int
    start: int
    end: int
    saves: tuple[tuple[int, int], ...] = ()
    blocks_of: int | None = None
    """The slot whose attention blocks it reads and writes: its own, or those of the request that it continues."""


def make_step(program: Program, parts: Sequence[Part], seed: int = 0) -> ForwardBatch:
    """All requests have the same tokens; slot s goes with blocks s * 5 … s * 5 + 4 of the attention group."""
    tokens = np.random.default_rng(seed).integers(0, program.vocab_size, MAX_MODEL_LEN).astype(np.int32)
    owners = [part.slot if part.blocks_of is None else part.blocks_of for part in parts]
    table = np.array([[(owner * 5 + i) % NUM_BLOCKS for i in range(5)] for owner in owners], np.int32)
    saves = [(i, STATE_GROUP, position, slot) for i, part in enumerate(parts) for position, slot in part.saves]
    slots = np.array([[part.slot] for part in parts], np.int32)
    return ForwardBatch(
        SeatTables(np.tile(tokens, (len(parts), 1)), (table, slots)),
        seats=np.arange(len(parts), dtype=np.int32),
        num_computed_tokens=np.array([part.start for part in parts], np.int32),
        num_scheduled_tokens=np.array([part.end - part.start for part in parts], np.int32),
        state_saves=np.array(saves, np.int32).reshape(-1, 4),
    )


def logits_of(native: Any, batch: ForwardBatch) -> np.ndarray:
    """Run a step; return the logits of all its rows."""
    native.run(batch)
    logits: np.ndarray = native.logits(np.arange(len(batch.token_ids), dtype=np.int32))
    return logits


class Slots:
    """The state group's pool as a scheduler's moves see it: [slots, layers, floats of a layer]."""

    def __init__(self, spec: StateGroupSpec, pool: np.ndarray) -> None:
        self.spec = spec
        size = len(pool) // spec.block_bytes * spec.block_bytes
        self.floats = pool[:size].view(np.float32).reshape(-1, spec.num_layers, spec.layer_floats)

    def restore(self, source: int, target: int) -> None:
        snapshot = self.spec.snapshot_floats
        self.floats[target, :, :snapshot] = self.floats[source, :, :snapshot]
        border = self.floats[target, :, self.spec.state_floats : snapshot]
        self.floats[target, :, snapshot : snapshot + self.spec.conv_floats] = border

    def copy(self, source: int, target: int) -> None:
        self.floats[target] = self.floats[source]

    def open_rows(self, slot: int) -> np.ndarray:
        """Return the part of a slot that holds the rows since the border."""
        rows: np.ndarray = self.floats[slot, :, self.spec.snapshot_floats + self.spec.conv_floats :]
        return rows
