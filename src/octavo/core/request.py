"""`Request`: one completion of one prompt, from its arrival to its end. State only; the roles act on it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from octavo.core.block_pool import Block
    from octavo.core.prefix_index import PrefixNode
    from octavo.core.step import Move, TokenLogprobs
    from octavo.observe.events import DeferReason
    from octavo.pooling_params import PoolingType
    from octavo.sampling_params import SamplingParams


class StopChecker(Protocol):
    """Looks for stop strings in the text of one completion, token by token."""

    def append(self, token_id: int) -> str | None:
        """Take one more token; return the stop string it completes, if any. Observes `min_tokens` itself."""
        ...


class TokenConstraint(Protocol):
    """Follows the grammar of one completion, token by token; the mask source knows what it allows next."""

    def append(self, token_id: int) -> bool:
        """Take one more token; return whether it ends the output."""
        ...


class RequestStatus(Enum):
    """Where a request is. There is no prefill or decode: see `num_computed_tokens`."""

    WAITING = "waiting"
    """In the queue, new or preempted; owns no blocks."""
    RUNNING = "running"
    """Has a seat and block tables."""
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class BlockTables:
    """The blocks of a running request: one table per paged cache group, all of the same length, and its slots."""

    tables: list[list[Block | None]]
    """Per paged group; None where a window left the block behind."""
    num_left_behind: list[int]
    """Per paged group, leading entries that are None."""
    num_slots: int
    """Tokens that fit in the tables."""
    node: PrefixNode
    """The prefix published or found so far: the first `num_published` blocks. Pinned."""
    num_published: int
    next_commit: int
    """At this many computed tokens, another block is full."""
    slots: list[Block] = field(default_factory=list)
    """Per state group, which come after the paged ones, where the request's state is."""
    junction: int = 0
    """Where the index knew no more of its tokens, if it runs over what others have computed: worth a snapshot."""
    shares_tail: bool = False
    """The last block and the slots may have other users who write to them too: look before writing."""
    moves: list[Move] = field(default_factory=list)
    """To be done before the next step."""
    num_sent: int = -1
    """Entries of each table that the data plane knows; -1 until the seat was assigned there."""
    replaced: list[tuple[int, int]] = field(default_factory=list)
    """(group, index) of entries that changed since they were sent; the only entry of a state group has index 0."""

    def entry(self, group: int, index: int) -> Block | None:
        """Return one entry of a group's table."""
        return self.tables[group][index] if group < len(self.tables) else self.slots[group - len(self.tables)]


@dataclass(slots=True, eq=False)
class Request:
    """One completion. With n > 1 the later ones are born from the first, when there is room for them."""

    request_id: str
    prompt_token_ids: InitVar[Sequence[int]]
    params: SamplingParams
    arrival: int = field(kw_only=True)
    """Ordinal among all requests of the engine."""
    seed: int = field(kw_only=True)
    """Completion i is sampled with the seed of completion 0, plus i."""
    max_tokens: int = field(kw_only=True)
    """Resolved by `EngineCore.check_fits`; that of `params` is not read."""
    pooling: PoolingType | None = field(default=None, kw_only=True)
    """It generates nothing: which of its prompt's hidden states add up to its output."""
    priority: int = field(default=0, kw_only=True)
    """Smaller goes first, if the policy is "priority"."""
    cache_salt: str | None = field(default=None, kw_only=True)
    """Cached blocks are shared only with requests of the same salt."""
    make_stop_checker: Callable[[], StopChecker] | None = field(default=None, kw_only=True)
    """Called once per completion, if stop strings are to be looked for."""
    make_constraint: Callable[[], TokenConstraint] | None = field(default=None, kw_only=True)
    """Called once per completion, if a grammar restricts its tokens."""
    is_streamed: bool = field(default=True, kw_only=True)
    """Each token is told at once; else the first is, and the rest at the end: nobody is woken in between."""
    index: int = field(default=0, kw_only=True)
    """Which of the n completions."""

    token_ids: array[int] = field(init=False)
    """Prompt followed by the output so far."""
    prompt_len: int = field(init=False)
    num_tokens: int = field(init=False)
    """Length of `token_ids`."""
    num_unborn: int = field(init=False)
    """Later completions that this one still has to bring to life; only while it has no output."""
    rank: tuple[int, int, int] = field(init=False)
    """(priority, arrival, index): smaller goes first. Under the policy "fcfs" the scheduler takes the priority out."""
    ends_early: frozenset[int] = field(init=False)
    """Token ids that end the output before its length does."""
    stop_checker: StopChecker | None = field(init=False)
    constraint: TokenConstraint | None = field(init=False)

    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    defer_reason: DeferReason | None = field(default=None, init=False)
    seat: int = field(default=-1, init=False)
    blocks: BlockTables | None = field(default=None, init=False)
    num_computed_tokens: int = field(default=0, init=False)
    num_scheduled_tokens: int = field(default=0, init=False)
    """Rows in the step that is being planned or computed."""
    num_cached_tokens: int = field(default=-1, init=False)
    """Tokens found in the prefix cache when it first ran; -1 before that."""
    num_scored_tokens: int = field(init=False)
    """Prompt tokens whose logprobs are out or not wanted; the first never has one."""
    num_preemptions: int = field(default=0, init=False)
    num_told_tokens: int = field(init=False)
    """Prompt, and output that an `EngineCoreOutput` told of."""
    untold_logprobs: list[TokenLogprobs] = field(default_factory=list, init=False)

    def __post_init__(self, prompt_token_ids: Sequence[int]) -> None:
        self.token_ids = array("i", prompt_token_ids)
        self.prompt_len = self.num_tokens = self.num_told_tokens = len(self.token_ids)
        self.num_unborn = self.params.n - 1 if self.index == 0 else 0
        self.rank = (self.priority, self.arrival, self.index)
        self.ends_early = self.params.all_stop_token_ids
        self.stop_checker = self.make_stop_checker() if self.make_stop_checker else None
        self.constraint = self.make_constraint() if self.make_constraint else None
        self.num_scored_tokens = 1 if self.wants_prompt_logprobs else self.prompt_len

    def spawn(self) -> Request:
        """Return the next completion of the same prompt, which has no output and no blocks.

        Mutates: self, which has one unborn completion less.
        """
        assert self.num_unborn > 0, "all completions are born"
        index = self.params.n - self.num_unborn
        self.num_unborn -= 1
        prompt, seed = self.token_ids[: self.prompt_len], self.seed - self.index + index
        child = replace(self, prompt_token_ids=prompt, seed=seed, index=index)
        child.rank = (*self.rank[:2], index)
        return child

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.prompt_len

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether this completion reports the prompt's logprobs: the first does it for all."""
        return self.params.scores_prompt and self.index == 0

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether computed blocks of others may be used; all rows are needed where each is scored or added up."""
        return not (self.params.skip_reading_prefix_cache or self.wants_prompt_logprobs or self.pooling == "mean")
