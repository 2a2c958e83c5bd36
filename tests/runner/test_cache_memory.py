"""The cache's bytes: zero at birth, moved in order, given back without touching their neighbours."""

from __future__ import annotations

import mmap
import resource
import sys

import numpy as np
import pytest

from octavo.cache_spec import AttentionGroupSpec, StateGroupSpec
from octavo.config import MAX_CACHE_BLOCKS
from octavo.core.step import Move
from octavo.errors import ConfigError
from octavo.runner.cache_memory import READ_SLACK_BYTES, CacheMemory, plan_capacity
from octavo.runner.lazy_memory import lazy_zeros


def make_spec(num_layers: int = 1, block_size: int = 16, head_dim: int = 64) -> AttentionGroupSpec:
    return AttentionGroupSpec("full", num_layers, 1, head_dim, "float16", block_size)


def make_states(*, keeps_border: bool = True, num_layers: int = 3) -> StateGroupSpec:
    """Slots of odd sizes: value dims that fill no vector, more value heads than key heads."""
    return StateGroupSpec(num_layers, 2, 4, 5, 17, 4, 2 * 2 * 5 + 4 * 17, 16, keeps_border)


def fields(memory: CacheMemory, spec: StateGroupSpec, slot: int) -> dict[str, np.ndarray]:
    """Views of the parts of one slot, each [layers, floats], in the order that the spec documents."""
    names = ["state", "border_conv", "conv", "open"] if spec.keeps_border else ["state", "conv", "open"]
    sizes = {"state": spec.state_floats, "open": spec.open_floats}
    layers = memory.block(1, slot).view(np.float32).reshape(spec.num_layers, -1)
    ends = np.cumsum([sizes.get(name, spec.conv_floats) for name in names])
    assert ends[-1] == layers.shape[1]
    return dict(zip(names, np.split(layers, ends[:-1], axis=1), strict=True))


def make_filled(spec: StateGroupSpec) -> CacheMemory:
    """Three slots of random numbers behind an attention group."""
    memory = CacheMemory([make_spec(), spec], [2, 3])
    floats = memory.buffers[1][:-READ_SLACK_BYTES].view(np.float32)
    floats[:] = np.random.default_rng(3).standard_normal(len(floats), dtype=np.float32)
    return memory


def test_memory_is_zero_and_has_slack_behind_the_last_block() -> None:
    specs = [make_spec(), make_spec(num_layers=3)]
    memory = CacheMemory(specs, [5, 7])
    assert [len(buffer) for buffer in memory.buffers] == [
        count * spec.block_bytes + READ_SLACK_BYTES for spec, count in zip(specs, [5, 7], strict=True)
    ]
    assert not any(buffer.any() for buffer in memory.buffers)


def test_blocks_lie_in_id_order_without_overlap() -> None:
    memory = CacheMemory([make_spec()], [4])
    for block_id in range(4):
        memory.block(0, block_id)[:] = block_id + 1
    filled = memory.buffers[0][:-READ_SLACK_BYTES].reshape(4, -1)
    assert [set(row.tolist()) for row in filled] == [{1}, {2}, {3}, {4}]
    assert not memory.buffers[0][-READ_SLACK_BYTES:].any()


def test_moves_are_done_in_list_order() -> None:
    memory = CacheMemory([make_spec(), make_spec()], [3, 3])
    memory.block(0, 0)[:] = 1
    memory.block(0, 1)[:] = 2
    memory.apply([Move("copy_block", 0, 1, 2), Move("copy_block", 0, 0, 1)])
    assert [int(memory.block(0, block_id)[0]) for block_id in range(3)] == [1, 1, 2]
    assert not memory.buffers[1].any()


@pytest.mark.parametrize("keeps_border", [True, False])
def test_a_cleared_state_is_zero_but_for_its_open_rows(keeps_border: bool) -> None:
    spec = make_states(keeps_border=keeps_border)
    memory, before = make_filled(spec), make_filled(spec)
    memory.apply([Move("clear_state", 1, -1, 1)])
    cleared = fields(memory, spec, 1)
    np.testing.assert_array_equal(cleared.pop("open"), fields(before, spec, 1)["open"])
    assert not any(part.any() for part in cleared.values())
    for other in (0, 2):
        np.testing.assert_array_equal(memory.block(1, other), before.block(1, other))


@pytest.mark.parametrize("source", [0, 2], ids=["another slot", "the slot itself"])
def test_a_restored_state_stands_at_the_border_of_its_snapshot(source: int) -> None:
    spec = make_states()
    memory, before = make_filled(spec), make_filled(spec)
    memory.apply([Move("restore_state", 1, source, 2)])
    restored, snapshot = fields(memory, spec, 2), fields(before, spec, source)
    np.testing.assert_array_equal(restored["state"], snapshot["state"])
    np.testing.assert_array_equal(restored["border_conv"], snapshot["border_conv"])
    np.testing.assert_array_equal(restored["conv"], snapshot["border_conv"])
    for other in (0, 1):
        np.testing.assert_array_equal(memory.block(1, other), before.block(1, other))


def test_a_copied_state_is_equal_to_its_last_byte() -> None:
    spec = make_states()
    memory, before = make_filled(spec), make_filled(spec)
    memory.apply([Move("copy_state", 1, 0, 2)])
    np.testing.assert_array_equal(memory.block(1, 2), before.block(1, 0))
    np.testing.assert_array_equal(memory.block(1, 1), before.block(1, 1))


def test_a_snapshot_is_read_before_its_slot_is_cleared_for_another() -> None:
    spec = make_states()
    memory, before = make_filled(spec), make_filled(spec)
    memory.apply([Move("restore_state", 1, 0, 1), Move("clear_state", 1, -1, 0)])
    np.testing.assert_array_equal(fields(memory, spec, 1)["state"], fields(before, spec, 0)["state"])
    assert not fields(memory, spec, 0)["state"].any()


@pytest.mark.parametrize("released", [[1], [1, 2], [3, 1], [0, 1, 2, 3]], ids=str)
def test_releasing_blocks_leaves_the_others_as_they_are(released: list[int]) -> None:
    # 6 KiB a block: no border but every second lies on a page.
    spec = make_spec(head_dim=96)
    assert spec.block_bytes % mmap.PAGESIZE != 0
    memory = CacheMemory([spec], [4])
    memory.buffers[0][:] = 9
    memory.release_blocks(0, released)
    for block_id in range(4):
        if block_id not in released:
            assert set(memory.block(0, block_id).tolist()) == {9}
    assert set(memory.buffers[0][-READ_SLACK_BYTES:].tolist()) == {9}
    memory.block(0, released[0])[:] = 4
    assert set(memory.block(0, released[0]).tolist()) == {4}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_blocks_take_no_memory() -> None:
    spec = make_spec(num_layers=32, block_size=128)
    memory = CacheMemory([spec], [64])
    memory.buffers[0][:] = 1
    before = resident_bytes()
    memory.release_blocks(0, list(range(64)))
    assert before - resident_bytes() > 0.9 * 64 * spec.block_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_committed_only_where_it_is_touched() -> None:
    before = resident_bytes()
    memory = CacheMemory([make_spec(num_layers=32, block_size=128)], [4096])
    tokens = lazy_zeros((4096, 131_072), np.int32)
    memory.block(0, 100)[0] = 1
    tokens[17, 5] = 1
    assert resident_bytes() - before < 16 * 2**20


def test_any_group_may_fill_the_ledger() -> None:
    small, large = make_spec(), make_spec(num_layers=4)
    capacity = plan_capacity([small, large], 10 * large.block_bytes)
    assert capacity.ledger_bytes == 10 * large.block_bytes
    assert capacity.num_blocks == (40, 10)


def test_an_override_gives_every_group_that_many_blocks() -> None:
    specs = [make_spec(), make_spec(num_layers=4)]
    capacity = plan_capacity(specs, 0, num_blocks_override=3)
    assert capacity.num_blocks == (3, 3)
    assert capacity.ledger_bytes == 3 * sum(spec.block_bytes for spec in specs)


def test_an_override_leaves_the_slots_to_the_budget() -> None:
    full, states = make_spec(), make_states()
    three = 3 * full.block_bytes
    for cache_bytes, num_slots in [(0, 1), (three + 2 * states.block_bytes, 2), (1 << 40, 3)]:
        capacity = plan_capacity([full, states], cache_bytes, num_blocks_override=3)
        assert capacity.num_blocks == (3, num_slots)
        assert capacity.ledger_bytes == three + num_slots * states.block_bytes


def test_a_cache_too_small_for_the_states_of_one_request_names_all_numbers() -> None:
    full, states = make_spec(), make_states()
    smallest = full.block_bytes + states.block_bytes
    wanted = f"{smallest - 1} bytes.*takes {full.block_bytes}, .* states of one request {states.block_bytes};"
    with pytest.raises(ConfigError, match=wanted):
        plan_capacity([full, states], smallest - 1)
    assert plan_capacity([full, states], smallest).num_blocks[1] == 1


def test_a_cache_too_small_for_one_block_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"100 bytes.*4096.*kv_cache_memory_bytes"):
        plan_capacity([make_spec()], 100)


def test_closing_twice_is_harmless() -> None:
    memory = CacheMemory([make_spec()], [1])
    memory.close()
    memory.close()
    assert memory.buffers == []


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("num_blocks", [2**40, 2**62])
def test_a_cache_beyond_the_address_space_is_refused_with_the_way_out(num_blocks: int) -> None:
    with pytest.raises(ConfigError, match="lower kv_cache_memory_bytes or num_gpu_blocks_override"):
        CacheMemory([make_spec()], [num_blocks])


def test_a_huge_budget_has_no_more_blocks_than_there_are_ids() -> None:
    assert plan_capacity([make_spec()], 1 << 50).num_blocks == (MAX_CACHE_BLOCKS,)
