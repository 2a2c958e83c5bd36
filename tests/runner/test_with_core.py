"""Both planes together, on a "model" whose next token is a hash of everything attention would see through the cache.

A wrong slot, table, copy, window or stale block changes the hash, and with it the tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from cache_integrity import check_engine

from octavo.cache_spec import AttentionGroupSpec
from octavo.config import SchedulerConfig
from octavo.core.engine_core import EngineCore
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.errors import StepCancelledError
from octavo.program.forward_batch import RESULT_DTYPE, ForwardBatch, SampleBatch, SampleOutput
from octavo.runner.cache_memory import CacheMemory, plan_capacity
from octavo.runner.input_batch import InputBatch
from octavo.runner.local_executor import LocalExecutor
from octavo.sampling_params import SamplingParams

VOCAB = 97
POISON = 96
"""A token id that no prompt but a poisoned one has, and that is never sampled."""
WINDOW = 20
MAX_MODEL_LEN = 160


def next_token(history: list[int], seed: int) -> int:
    """The model, without a cache."""
    return token_of(digest(history, 0) + 7 * digest(history, len(history) - WINDOW), seed, len(history))


def digest(history: list[int], start: int) -> int:
    return sum((token + 1) * (position + 3) ** 2 for position, token in enumerate(history) if position >= start)


def token_of(value: int, seed: int, position: int) -> int:
    return (int(value) + int(seed) * 31 + int(position)) % POISON


class HashProgram:
    """Writes (token, position) to each group's cache, and reads both back through the block tables."""

    def __init__(
        self, memory: CacheMemory, specs: list[AttentionGroupSpec], cancel_chance: float, rng: random.Random
    ) -> None:
        self.specs = specs
        self.memory = memory
        self.cancel_chance = cancel_chance
        self.rng = rng
        self.hidden = np.zeros(0, np.int64)

    def entries(self, group: int) -> np.ndarray:
        """Return the slots of a group: [slots, 2] int64."""
        buffer = self.memory.buffers[group]
        return buffer[: len(buffer) // 16 * 16].view(np.int64).reshape(-1, 2)

    def run(self, batch: ForwardBatch) -> float:
        if POISON in batch.token_ids:
            raise RuntimeError("poisoned")
        for group in range(len(self.specs)):
            slots = batch.slots(group, self.specs[group].block_size)
            assert len(np.unique(slots)) == len(slots)
            self.entries(group)[slots] = np.stack([batch.token_ids, batch.positions], axis=1)
        if self.rng.random() < self.cancel_chance:
            raise StepCancelledError("cancelled")
        self.hidden = np.zeros(len(batch.token_ids), np.int64)
        for request in range(len(batch.seq_lens)):
            for row in range(batch.query_start_loc[request], batch.query_start_loc[request + 1]):
                end = int(batch.positions[row]) + 1
                assert end <= batch.seq_lens[request]
                everything = self.seen(batch, request, 0, 0, end)
                window = self.seen(batch, request, len(self.specs) - 1, max(0, end - WINDOW), end)
                self.hidden[row] = everything + 7 * window
        return 0.0

    def seen(self, batch: ForwardBatch, request: int, group: int, start: int, end: int) -> int:
        block_size = self.specs[group].block_size
        positions = np.arange(start, end)
        blocks = batch.block_table(group, request)[positions // block_size].astype(np.int64)
        assert (blocks >= 0).all()
        tokens, stored = self.entries(group)[blocks * block_size + positions % block_size].T
        return int(((tokens + 1) * (stored + 3) ** 2).sum())

    def sample(self, batch: SampleBatch) -> SampleOutput:
        choices = batch.choices
        results = np.zeros(len(choices), RESULT_DTYPE)
        rows = zip(self.hidden[choices["row"]], choices["seed"], choices["position"], strict=True)
        results["token_id"] = [token_of(*row) for row in rows]
        return SampleOutput(results)

    @property
    def progress(self) -> int:
        return 0

    def cancel(self) -> None:
        raise AssertionError("nobody cancels")

    def close(self) -> None:
        raise AssertionError("nobody closes")


@dataclass
class Engine:
    """An engine core over `HashProgram`."""

    seed: int
    num_blocks: int
    windowed: bool = True
    cancel_chance: float = 0.0
    outputs: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    reasons: dict[tuple[str, int], str] = field(default_factory=dict)
    num_cached_tokens: int = 0

    def __post_init__(self) -> None:
        specs = [AttentionGroupSpec("full", 1, 1, 2, "float32", 16)]
        if self.windowed:
            specs.append(AttentionGroupSpec("sliding", 1, 1, 2, "float32", 16, WINDOW))
        capacity = plan_capacity(specs, 0, self.num_blocks)
        memory = CacheMemory(specs, capacity.num_blocks)
        inputs = InputBatch(
            max_num_seqs=5,
            max_model_len=MAX_MODEL_LEN,
            block_sizes=[spec.block_size for spec in specs],
            vocab_size=VOCAB,
            hidden_size=1,
        )
        program = HashProgram(memory, specs, self.cancel_chance, random.Random(self.seed))
        executor = LocalExecutor(program, capacity, memory, inputs)
        manager = KVCacheManager(specs, capacity, enable_prefix_caching=True, give_back=executor.release_blocks)
        config = SchedulerConfig(
            max_num_seqs=5,
            max_num_batched_tokens=48,
            max_model_len=MAX_MODEL_LEN,
            long_prefill_token_threshold=13,
            target_itl_ms=None,
            enable_chunked_prefill=True,
            policy="fcfs",
            enable_prefix_caching=True,
        )
        self.core = EngineCore(Scheduler(config, manager), executor)

    def add(self, name: str, prompt: list[int], *, n: int = 1, max_tokens: int = 20) -> None:
        params = SamplingParams(n=n, max_tokens=max_tokens)
        request = Request(name, prompt, params, arrival=int(name), seed=int(name), max_tokens=max_tokens)
        self.core.add_request(request)

    def step(self) -> None:
        for output in self.core.advance():
            key = (output.request_id, output.index)
            self.outputs.setdefault(key, []).extend(output.new_token_ids)
            self.num_cached_tokens += output.num_cached_tokens
            if output.finish_reason:
                self.reasons[key] = output.finish_reason
        check_engine(self.core)

    def finish(self) -> None:
        while self.core.has_unfinished():
            self.step()


def make_prompts(rng: random.Random, count: int) -> list[list[int]]:
    """Return prompts of 1 to 90 tokens, of which many begin alike."""

    def tokens(count: int) -> list[int]:
        return [rng.randrange(POISON) for _ in range(count)]

    stems = [tokens(60) for _ in range(3)]
    return [rng.choice(stems)[: rng.randrange(60)] + tokens(rng.randint(1, 30)) for _ in range(count)]


def expect(prompt: list[int], seed: int, max_tokens: int) -> list[int]:
    history = list(prompt)
    for _ in range(max_tokens):
        history.append(next_token(history, seed))
    return history[len(prompt) :]


@pytest.mark.parametrize("windowed", [False, True], ids=["full", "sliding"])
@pytest.mark.parametrize(
    ("num_blocks", "cancel_chance"), [(64, 0.0), (9, 0.0), (12, 0.05)], ids=["roomy", "tight", "cancels"]
)
@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_those_of_the_model_without_a_cache(
    seed: int, num_blocks: int, cancel_chance: float, windowed: bool
) -> None:
    rng = random.Random(seed)
    engine = Engine(seed, num_blocks, windowed, cancel_chance)
    wanted = {}
    for number, prompt in enumerate(make_prompts(rng, 24)):
        n, max_tokens = rng.choice([1, 1, 1, 2, 3]), rng.randint(10, 35)
        engine.add(str(number), prompt, n=n, max_tokens=max_tokens)
        for index in range(n):
            wanted[str(number), index] = expect(prompt, number + index, max_tokens)
        for _ in range(rng.randint(0, 6)):
            engine.step()
    engine.finish()
    assert engine.outputs == wanted
    assert set(engine.reasons.values()) == {"length"}
    assert engine.num_cached_tokens > 0
    if num_blocks == 9:
        assert engine.core.scheduler.roster.num_preemptions >= 2


def test_a_request_that_breaks_its_steps_ends_alone() -> None:
    engine = Engine(1, 40)
    prompts = make_prompts(random.Random(5), 8)
    prompts[3] = [*prompts[3][:10], POISON]
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt)
    engine.finish()
    assert engine.reasons.pop(("3", 0)) == "error"
    assert engine.outputs.pop(("3", 0)) == []
    assert set(engine.reasons.values()) == {"length"}
    assert engine.outputs == {(str(i), 0): expect(p, i, 20) for i, p in enumerate(prompts) if i != 3}
