"""Recurrent layers in native code: the oracle's numbers; the same bits however rows are cut, saved and restored."""

from __future__ import annotations

import dataclasses
import itertools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hybrid_programs import STATE_GROUP, DeltaShape, Part, Slots, logits_of, make_hybrid, make_hybrid_weights, make_step
from tiny_programs import make_native, make_oracle, make_pools

from octavo.cache_spec import StateGroupSpec
from octavo.program.native import NativeProgram
from octavo.program.ops import Program

TOLERANCE = 1e-4
"""Largest difference from the oracle in standard deviations of the logits: other orders of float32 sums."""

NUM_ROWS = 67

GROUPED = DeltaShape()
SHAPES = {
    "equal_heads": DeltaShape(key_heads=3, value_heads=3),
    "grouped": GROUPED,
    "tiled": DeltaShape(tiled_heads=True),
    "odd_dims": DeltaShape(key_heads=2, value_heads=6, key_dim=24, value_dim=40),
    "small_dims": DeltaShape(key_heads=1, value_heads=1, key_dim=5, value_dim=3),
    "wide_conv": DeltaShape(key_dim=33, value_dim=17, conv_width=7),
    "narrow_conv": DeltaShape(conv_width=2),
    "many_channels": DeltaShape(key_heads=4, value_heads=12, key_dim=32, value_dim=48),
}


@dataclasses.dataclass
class Engine:
    """A native program and its pools."""

    program: Program
    native: NativeProgram
    slots: Slots


def make_engine(module: Any, shape: DeltaShape = GROUPED, **options: Any) -> Engine:
    program = make_hybrid(shape)
    pools = make_pools(program)
    native = make_native(program, make_hybrid_weights(program, module), module, pools=pools, **options)
    spec = program.cache_groups[STATE_GROUP]
    assert isinstance(spec, StateGroupSpec)
    return Engine(program, native, Slots(spec, pools[STATE_GROUP]))


def run(engine: Engine, *parts: Part) -> np.ndarray:
    return logits_of(engine.native, make_step(engine.program, parts))


def whole_logits(module: Any, shape: DeltaShape = GROUPED) -> np.ndarray:
    return run(make_engine(module, shape), Part(0, 0, NUM_ROWS))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_equal_the_oracles(module: ModuleType, shape: DeltaShape) -> None:
    engine = make_engine(module, shape)
    oracle = make_oracle(engine.program, make_hybrid_weights(engine.program, module))
    for parts in ([Part(2, 0, 40), Part(1, 0, 3)], [Part(1, 3, 20), Part(2, 40, 41)], [Part(2, 41, NUM_ROWS)]):
        batch = make_step(engine.program, parts)
        oracle.run_body(batch)
        expected = oracle.run_head(np.arange(len(batch.token_ids), dtype=np.int32))
        assert np.abs(logits_of(engine.native, batch) - expected).max() <= TOLERANCE * expected.std()


@pytest.mark.parametrize("shape", [SHAPES["grouped"], SHAPES["odd_dims"]], ids=["grouped", "odd_dims"])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("chunk", [1, 5, 16, 31], ids=lambda chunk: f"chunks_of_{chunk}")
def test_chunks_of_a_prompt_change_no_bit(module: ModuleType, shape: DeltaShape, num_threads: int, chunk: int) -> None:
    engine = make_engine(module, shape, num_threads=num_threads)
    cuts = [*range(0, NUM_ROWS, chunk), NUM_ROWS]
    logits = [run(engine, Part(0, start, end)) for start, end in itertools.pairwise(cuts)]
    assert np.concatenate(logits).tobytes() == whole_logits(module, shape).tobytes()


def test_random_cuts_of_a_prompt_change_no_bit(best_module: ModuleType) -> None:
    rng = np.random.default_rng(3)
    expected = whole_logits(best_module).tobytes()
    engine = make_engine(best_module)
    for _ in range(20):
        engine.slots.floats[0] = 0
        cuts = [0, *sorted(set(rng.integers(1, NUM_ROWS, rng.integers(1, 12)).tolist())), NUM_ROWS]
        logits = [run(engine, Part(0, start, end)) for start, end in itertools.pairwise(cuts)]
        assert np.concatenate(logits).tobytes() == expected


def test_company_changes_no_bit(module: ModuleType) -> None:
    engine = make_engine(module)
    logits = [run(engine, Part(1, 0, 7), Part(0, 0, 30))[7:]]
    logits.append(run(engine, Part(0, 30, 31), Part(1, 7, 8), Part(2, 0, 20))[:1])
    logits.append(run(engine, Part(2, 20, 50), Part(0, 31, NUM_ROWS))[30:])
    assert np.concatenate(logits).tobytes() == whole_logits(module).tobytes()


@pytest.mark.parametrize("shape", [SHAPES["grouped"], SHAPES["odd_dims"]], ids=["grouped", "odd_dims"])
@pytest.mark.parametrize("position", [16, 32, 48])
@pytest.mark.parametrize("end", [48, 49, NUM_ROWS])
def test_a_snapshot_continues_like_the_request_it_was_taken_of(
    module: ModuleType, shape: DeltaShape, position: int, end: int
) -> None:
    engine = make_engine(module, shape)
    run(engine, Part(0, 0, end, saves=((16, 4), (32, 5), (48, 6))))
    engine.slots.floats[7] = np.nan
    engine.slots.restore({16: 4, 32: 5, 48: 6}[position], 7)
    continued = run(engine, Part(7, position, NUM_ROWS, blocks_of=0))
    assert continued.tobytes() == whole_logits(module, shape)[position:].tobytes()


@pytest.mark.parametrize("start", [15, 31, 32, 40])
def test_a_snapshot_inside_a_later_chunk_holds_what_one_in_the_first_does(module: ModuleType, start: int) -> None:
    engine = make_engine(module)
    run(engine, Part(0, 0, NUM_ROWS, saves=((48, 4),)))
    run(engine, Part(1, 0, start))
    run(engine, Part(1, start, NUM_ROWS, saves=((48, 5),)))
    snapshot = engine.slots.spec.snapshot_floats
    assert engine.slots.floats[5, :, :snapshot].tobytes() == engine.slots.floats[4, :, :snapshot].tobytes()


@pytest.mark.parametrize("end", [16, 21, 64])
def test_a_slot_is_a_snapshot_of_its_last_border(module: ModuleType, end: int) -> None:
    engine = make_engine(module)
    border = end // 16 * 16
    run(engine, Part(0, 0, NUM_ROWS, saves=((border, 4),)))
    for position in range(end):
        run(engine, Part(1, position, position + 1))
    snapshot = engine.slots.spec.snapshot_floats
    assert engine.slots.floats[1, :, :snapshot].tobytes() == engine.slots.floats[4, :, :snapshot].tobytes()


def test_a_copy_continues_like_its_original(module: ModuleType) -> None:
    engine = make_engine(module)
    run(engine, Part(0, 0, 41))
    engine.slots.floats[7] = np.nan
    engine.slots.copy(0, 7)
    assert run(engine, Part(7, 41, NUM_ROWS, blocks_of=0)).tobytes() == whole_logits(module)[41:].tobytes()


def test_what_open_rows_a_slot_held_before_never_matters(module: ModuleType) -> None:
    engine = make_engine(module, SHAPES["odd_dims"])
    engine.slots.open_rows(0)[:] = np.nan
    logits = [run(engine, Part(0, start, start + 1)) for start in range(20)]
    expected = whole_logits(module, SHAPES["odd_dims"])[:20]
    assert np.concatenate(logits).tobytes() == expected.tobytes()


def test_a_slot_without_a_border_gives_the_same_bits(module: ModuleType) -> None:
    shape = DeltaShape(keeps_border=False)
    assert whole_logits(module, shape).tobytes() == whole_logits(module).tobytes()


def test_other_slots_are_left_alone(module: ModuleType) -> None:
    engine = make_engine(module)
    before = engine.slots.floats.copy()
    run(engine, Part(2, 0, 40, saves=((16, 5),)))
    touched = [slot for slot in range(len(before)) if not np.array_equal(before[slot], engine.slots.floats[slot])]
    assert touched == [2, 5]


SAVE_ERRORS = {
    "request": ((1, STATE_GROUP, 16, 4), "the request of a state save"),
    "group": ((0, 2, 16, 4), "the group of a state save"),
    "attention_group": ((0, 0, 16, 4), "group 0 holds no states"),
    "slot": ((0, STATE_GROUP, 16, 24), "the slot of a state save"),
    "no_border": ((0, STATE_GROUP, 17, 4), "must be a multiple of 16"),
    "past_the_rows": ((0, STATE_GROUP, 48, 4), "the position of a state save"),
    "before_the_rows": ((0, STATE_GROUP, 0, 4), "the position of a state save"),
}


@pytest.mark.parametrize(("save", "message"), SAVE_ERRORS.values(), ids=SAVE_ERRORS)
def test_a_save_out_of_bounds_is_refused(
    best_module: ModuleType, save: tuple[int, int, int, int], message: str
) -> None:
    engine = make_engine(best_module)
    batch = dataclasses.replace(make_step(engine.program, [Part(0, 0, 40)]), state_saves=np.array([save], np.int32))
    with pytest.raises(ValueError, match=message):
        engine.native.run(batch)


@pytest.mark.parametrize("slot", [-1, 24])
def test_a_slot_out_of_bounds_is_refused(best_module: ModuleType, slot: int) -> None:
    engine = make_engine(best_module)
    batch = make_step(engine.program, [Part(0, 0, 40)])
    batch.tables.blocks[STATE_GROUP][:] = slot
    with pytest.raises(ValueError, match="a state slot must be in"):
        engine.native.run(batch)


def test_sizes_that_the_kernels_cannot_hold_are_refused(best_module: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"key_dim must be in \[1, 512\], got 513"):
        make_engine(best_module, DeltaShape(key_heads=1, value_heads=1, key_dim=513))
