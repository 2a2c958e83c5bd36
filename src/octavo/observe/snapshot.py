"""`EngineSnapshot`: one engine between two steps, as plain values: who runs, who waits and why, what the cache holds.

One schema for all who look: `LLM.snapshot()` in the process, JSON for a server and whatever draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from octavo.wording import counted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

View = TypeVar("View", bound="DataclassInstance")

SNAPSHOT_SCHEMA = 1
"""Grows when a field changes its meaning or goes away. New fields may come without notice: their defaults stand for
what an older engine did not tell."""

WaitReason = Literal["seats", "blocks", "token_budget", "turn"]
"""Why a request waits: no free seat, too few free blocks, no room in the last step, or others are before it."""


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """Where the time of steps went, on the engine's thread."""

    schedule: float = 0.0
    """Deciding who runs, and taking in what arrived."""
    forward: float = 0.0
    """The model's body."""
    sample: float = 0.0
    """Logits and the choice of tokens."""
    output: float = 0.0
    """Accounting for the tokens. Text is made of them on another thread, while the next step runs."""


@dataclass(frozen=True, slots=True)
class SecondView:
    """The steps that ended within one second; seconds without any are left out."""

    age: int
    """Whole seconds ago; 0 is the second that has not ended."""
    num_steps: int
    num_tokens: int
    """Rows computed: of prompts and of decoding requests."""
    num_output_tokens: int
    num_requests: int
    """Summed over the steps: over `num_steps`, the mean batch size."""
    num_running: int
    """With a seat, in the last step."""
    num_waiting: int
    num_used_blocks: int
    """The most in any step."""
    phases: PhaseSeconds


@dataclass(frozen=True, slots=True)
class RequestView:
    """One completion of a request that has not ended."""

    request_id: str
    completion: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    """The most output tokens that it may have."""
    num_computed_tokens: int
    """Tokens whose keys and values are in the cache."""
    num_cached_tokens: int
    """Those of them that were found in the prefix cache when it first ran."""
    num_preemptions: int
    seat: int | None
    """None while it waits."""
    waits_for: WaitReason | None
    """None while it runs."""
    num_published_blocks: int
    """Leading blocks of its tables that others may share."""
    block_ids: tuple[tuple[int, ...], ...]
    """Per cache group, its block table; -1 where a sliding window left a block behind. Empty while it waits."""
    arrival: int = 0
    """Ordinal of the request's arrival, which tells it from all others; a server's clients may give ids twice."""


class BlockView(NamedTuple):
    """One block that requests use. A tuple, because there may be thousands."""

    block_id: int
    ref_cnt: int
    """Requests that use it."""
    owners: tuple[int, ...]
    """Who they are: indices into `EngineSnapshot.running`."""
    num_filled: int
    """Slots that hold a token; a recurrent state has none."""


@dataclass(frozen=True, slots=True)
class CacheGroupView:
    """The blocks of layers that share a block table; of recurrent layers, their slots. Others than these are free."""

    kind: Literal["full", "sliding", "state"]
    block_bytes: int
    num_blocks: int
    """Ids are 0 .. num_blocks - 1. All groups share one limit of bytes, which may come first."""
    used: tuple[BlockView, ...]
    """In order of their ids."""
    cached: tuple[int, ...]
    """Ids of the blocks that nobody uses and that may be hit; the first is evicted first."""


@dataclass(frozen=True, slots=True)
class KVCacheStats:
    """How well the cache is used. Blocks and slots of all attention groups; states of recurrent layers do not count."""

    block_size: int
    """Tokens of a block."""
    capacity_bytes: int
    used_bytes: int
    cached_bytes: int
    """Of blocks that nobody uses and that may be hit."""
    num_used_blocks: int
    num_cached_blocks: int
    num_available_blocks: int
    """That each attention group could still give, cached ones included."""
    peak_used_blocks: int
    num_shared_blocks: int
    """Used by more than one request."""
    num_saved_tokens: int
    """Tokens that would be in the cache once more if nobody shared."""
    num_empty_slots: int
    """Slots of blocks in use that hold no token: the only waste there is."""
    waste: float
    """Share of the slots in use that hold no token, now."""
    mean_waste: float
    """The same over all steps since the start, each weighted by the slots it had in use."""
    num_evictions: int
    num_queried_tokens: int
    """Looked up in the prefix cache since the start."""
    num_hit_tokens: int
    hit_rate: float
    """Share of them that was found."""

    def summary(self) -> str:
        """Return one line about the time since the start."""
        text = (
            f"KV cache: at most {counted(self.peak_used_blocks, 'block')} of {self.block_size} tokens in use,"
            f" on average {self.mean_waste:.1%} empty"
        )
        if self.num_queried_tokens:
            text += f"; {self.hit_rate:.0%} of the prompts found in the prefix cache"
        return f"{text}; {counted(self.num_evictions, 'eviction')}"


@dataclass(frozen=True, slots=True)
class LatencyView:
    """How one kind of wait is spread over the last values of it. Units: seconds; 0 where there is no value yet."""

    num_values: int = 0
    p50: float = 0.0
    """Half of the values are at most this."""
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class LatenciesView:
    """What callers waited for: of the last requests and tokens, as seen where text is made."""

    queue: LatencyView = LatencyView()
    """Per request, from its arrival until it first had a seat."""
    ttft: LatencyView = LatencyView()
    """Per request, from its arrival to its first token."""
    itl: LatencyView = LatencyView()
    """Per token after the first of its completion, since the one before."""
    e2e: LatencyView = LatencyView()
    """Per request, from its arrival to its last token."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """An engine between two steps."""

    schema: int
    taken_at: float
    """Wall-clock seconds since the epoch."""
    num_steps: int
    """Since the start."""
    max_num_seqs: int
    """Seats."""
    max_num_batched_tokens: int
    max_model_len: int
    running: tuple[RequestView, ...]
    """In order of rank: the last is the first to be preempted."""
    waiting: tuple[RequestView, ...]
    """In the order in which they will be admitted."""
    cache_groups: tuple[CacheGroupView, ...]
    kv_cache: KVCacheStats
    output_tokens_per_s: float
    """Over the last ten seconds."""
    last_minute: tuple[SecondView, ...]
    """The oldest first."""
    num_preemptions: int = 0
    """Since the start."""
    latencies: LatenciesView = LatenciesView()

    def with_request_ids(self, names: Mapping[str, str]) -> EngineSnapshot:
        """Return a copy with other ids for the requests that have one in `names`."""

        def named(requests: tuple[RequestView, ...]) -> tuple[RequestView, ...]:
            return tuple(replace(entry, request_id=names.get(entry.request_id, entry.request_id)) for entry in requests)

        return replace(self, running=named(self.running), waiting=named(self.waiting))

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `json.dumps` takes."""
        return _plain(self) | {
            "running": list(map(_plain, self.running)),
            "waiting": list(map(_plain, self.waiting)),
            "cache_groups": [
                _plain(group) | {"used": [block._asdict() for block in group.used]} for group in self.cache_groups
            ],
            "kv_cache": _plain(self.kv_cache),
            "last_minute": [_plain(second) | {"phases": _plain(second.phases)} for second in self.last_minute],
            "latencies": {name: _plain(view) for name, view in _plain(self.latencies).items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EngineSnapshot:
        """Read what `to_json` wrote, of the same schema.

        Raises: ValueError for anything else.
        """
        try:
            if data["schema"] != SNAPSHOT_SCHEMA:
                raise ValueError(f"a snapshot of schema {data['schema']!r}; this version reads {SNAPSHOT_SCHEMA}")
            return _read(
                cls,
                data,
                running=tuple(map(_read_request, data["running"])),
                waiting=tuple(map(_read_request, data["waiting"])),
                cache_groups=tuple(map(_read_group, data["cache_groups"])),
                kv_cache=_read(KVCacheStats, data["kv_cache"]),
                last_minute=tuple(
                    _read(SecondView, entry, phases=_read(PhaseSeconds, entry["phases"]))
                    for entry in data["last_minute"]
                ),
                latencies=LatenciesView(
                    **{name: _read(LatencyView, view) for name, view in data.get("latencies", {}).items()}
                ),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a snapshot of an engine: {type(error).__name__}: {error}") from error


def _read_request(data: Mapping[str, Any]) -> RequestView:
    return _read(RequestView, data, block_ids=tuple(map(tuple, data["block_ids"])))


def _read_group(data: Mapping[str, Any]) -> CacheGroupView:
    used = tuple(
        BlockView(block["block_id"], block["ref_cnt"], tuple(block["owners"]), block["num_filled"])
        for block in data["used"]
    )
    return _read(CacheGroupView, data, used=used, cached=tuple(data["cached"]))


def _plain(view: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass as they are; `asdict` would copy every block table."""
    return {entry.name: getattr(view, entry.name) for entry in fields(view)}


def _read(cls: type[View], data: Mapping[str, Any], **parts: Any) -> View:
    """Make a dataclass of the entries that it knows, and of parts that have been read already."""
    names = {entry.name for entry in fields(cls)} & data.keys()
    return cls(**{name: data[name] for name in names} | parts)
