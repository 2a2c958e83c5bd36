"""Small engines over `FakeExecutor`, and what their requests must give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from cache_integrity import check_engine
from fake_executor import FakeExecutor, hidden_state, histories_of, next_token

from octavo.cache_spec import AttentionGroupSpec, CacheGroupSpec, StateGroupSpec
from octavo.config import SchedulerConfig
from octavo.core.engine_core import EngineCore
from octavo.core.executor import CacheCapacity
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.step import EngineCoreOutput
from octavo.observe.events import Event
from octavo.pooling_params import PoolingType
from octavo.sampling_params import SamplingParams

EOS = 7
OTHER_EOS = 1_000_007
"""Ends a text too; the fake model never says it."""
FULL = None
"""A window that sees everything."""
STATE: Literal["state"] = "state"
"""No window at all: a group of recurrent states."""
Window: TypeAlias = "int | Literal['state'] | None"


class EventLog:
    """A sink that keeps everything."""

    enabled = True
    wants_steps = wants_blocks = True

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def make_specs(windows: Sequence[Window] = (FULL,), block_size: int = 4) -> list[CacheGroupSpec]:
    """Groups whose blocks differ in size: group g has g + 1 layers."""
    return [
        StateGroupSpec(group + 1, 1, 1, 2, 2, 4, 6, block_size)
        if window == STATE
        else AttentionGroupSpec("full" if window is None else "sliding", group + 1, 1, 1, "float32", block_size, window)
        for group, window in enumerate(windows)
    ]


def make_capacity(
    specs: Sequence[CacheGroupSpec], num_blocks: int | Sequence[int], share: float = 1.0
) -> CacheCapacity:
    """That many blocks per group, of which the ledger allows a share of the bytes."""
    counts = tuple(num_blocks) if isinstance(num_blocks, Sequence) else (num_blocks,) * len(specs)
    total = sum(count * spec.block_bytes for count, spec in zip(counts, specs, strict=True))
    return CacheCapacity(max(int(total * share), sum(spec.block_bytes for spec in specs)), counts)


def make_config(**changes: Any) -> SchedulerConfig:
    values: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "long_prefill_token_threshold": 0,
        "target_itl_ms": None,
        "enable_chunked_prefill": True,
        "policy": "fcfs",
        "enable_prefix_caching": True,
    }
    return SchedulerConfig(**(values | changes))


def make_manager(
    num_blocks: int | Sequence[int] = 16,
    windows: Sequence[Window] = (FULL,),
    block_size: int = 4,
    share: float = 1.0,
    enable_prefix_caching: bool = True,
    events: EventLog | None = None,
    give_back: Callable[[int, list[int]], None] = lambda *_: None,
) -> KVCacheManager:
    specs = make_specs(windows, block_size)
    return KVCacheManager(
        specs,
        make_capacity(specs, num_blocks, share),
        enable_prefix_caching=enable_prefix_caching,
        give_back=give_back,
        events=events or EventLog(),
    )


def make_request(
    request_id: str = "a",
    prompt: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    arrival: int = 0,
    max_tokens: int = 4,
    seed: int = 0,
    priority: int = 0,
    cache_salt: str | None = None,
    make_stop_checker: Any = None,
    make_constraint: Any = None,
    is_streamed: bool = True,
    pooling: PoolingType | None = None,
    eos: int = EOS,
    **params: Any,
) -> Request:
    own = SamplingParams(max_tokens=max_tokens, **params)
    own.eos_token_id, own.eos_token_ids = eos, frozenset({eos, OTHER_EOS})
    return Request(
        request_id,
        list(prompt),
        own,
        arrival=arrival,
        seed=seed,
        max_tokens=0 if pooling else max_tokens,
        pooling=pooling,
        priority=priority,
        cache_salt=cache_salt,
        make_stop_checker=make_stop_checker,
        make_constraint=make_constraint,
        is_streamed=is_streamed,
    )


def make_endless(request_id: str, arrival: int, prompt_len: int = 4, max_tokens: int = 12, **params: Any) -> Request:
    """A request that does not end before its length; prompts of different arrivals share nothing."""
    prompt = range(100 * arrival, 100 * arrival + prompt_len)
    return make_request(request_id, prompt, arrival=arrival, max_tokens=max_tokens, ignore_eos=True, **params)


@dataclass
class Completion:
    """All outputs of one completion, put together."""

    token_ids: list[int] = field(default_factory=list)
    scored_ids: list[int] = field(default_factory=list)
    """Prompt tokens that came with logprobs."""
    finish_reason: str | None = None
    last: EngineCoreOutput | None = None


class Engine:
    """An `EngineCore` over a `FakeExecutor`, with its outputs put together."""

    def __init__(
        self,
        *,
        num_blocks: int | Sequence[int] = 16,
        windows: Sequence[Window] = (FULL,),
        block_size: int = 4,
        share: float = 1.0,
        snapshot_interval: int = 32,
        **config: Any,
    ) -> None:
        specs = make_specs(windows, block_size)
        self.log = EventLog()
        self.config = make_config(**config)
        self.executor = FakeExecutor(specs, make_capacity(specs, num_blocks, share))
        self.manager = KVCacheManager(
            specs,
            self.executor.capacity(),
            enable_prefix_caching=self.config.enable_prefix_caching,
            give_back=self.executor.release_blocks,
            events=self.log,
            snapshot_interval=snapshot_interval,
        )
        self.scheduler = Scheduler(self.config, self.manager, events=self.log)
        self.core = EngineCore(self.scheduler, self.executor)
        self.completions: dict[tuple[str, int], Completion] = {}

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.core.add_request(request)

    def advance(self, steps: int = 1) -> None:
        """Take steps, checking all invariants after each."""
        for _ in range(steps):
            for output in self.core.advance():
                self._take(output)
            self.check()

    def finish(self, most_steps: int = 500) -> dict[tuple[str, int], Completion]:
        """Step until nothing is left; return everything that came."""
        for _ in range(most_steps):
            if not self.core.has_unfinished():
                assert self.manager.pool.used_bytes == 0, "blocks leak"
                return self.completions
            self.advance()
        raise AssertionError(f"requests starve: {sorted(r.request_id for r in self.scheduler.roster.waiting)}")

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return self.completions[request_id, index].token_ids

    def check(self) -> None:
        if self.executor.broken is not None:
            raise self.executor.broken
        check_engine(self.core)
        roster = self.scheduler.roster
        assert all(request.blocks is None and request.seat == -1 for request in roster.waiting), (
            "who waits owns nothing"
        )
        assert all(r.num_computed_tokens == r.num_scheduled_tokens == 0 for r in roster.waiting), (
            "who waits begins anew"
        )
        assert [r.rank for r in roster.running] == sorted(r.rank for r in roster.running), "the last ranks last"
        seats = [request.seat for request in roster.running]
        assert len(set(seats)) == len(seats) <= self.config.max_num_seqs, "one request a seat"
        for plan in self.executor.plans[-1:]:
            assert plan.num_scheduled_tokens.sum() <= self.config.max_num_batched_tokens

    def _take(self, output: EngineCoreOutput) -> None:
        completion = self.completions.setdefault((output.request_id, output.index), Completion())
        assert completion.finish_reason is None, "nothing comes after the end"
        completion.token_ids += output.new_token_ids
        completion.scored_ids += [entry.token_ids[0] for entry in output.prompt_logprobs or ()]
        completion.finish_reason = output.finish_reason
        completion.last = output


def sum_alone(request: Request) -> float:
    """Return what a pooled request must give: the model without any engine."""
    states = [hidden_state(history) for history in histories_of(request.token_ids.tolist())]
    return sum(states) if request.pooling == "mean" else states[-1]


def tokens_alone(request: Request, index: int = 0) -> tuple[list[int], str]:
    """Return what completion `index` of a request must give, and why it ends: the model without any engine."""
    token_ids = request.token_ids.tolist()[: request.prompt_len]
    checker = request.make_stop_checker() if request.make_stop_checker else None
    params = request.params
    while True:
        token_id = next_token(token_ids, request.seed + index)
        token_ids.append(token_id)
        output = token_ids[request.prompt_len :]
        if len(output) >= params.min_tokens:
            if token_id in params.eos_token_ids and not params.ignore_eos:
                return output, "stop"
            if token_id in (params.stop_token_ids or ()):
                return output, "stop"
        if checker is not None and checker.append(token_id) is not None:
            return output, "stop"
        if len(output) >= request.max_tokens:
            return output, "length"
