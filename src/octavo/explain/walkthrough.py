"""One run of the engine, told step by step: what was fed, what came out, what the KV cache held after it.

Everything is taken from the engine's events and its block tables while it runs; then the tables, the events and the
answers are checked against each other.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.frontend.build import build
from octavo.llm import LLM
from octavo.observe.events import RequestFinished, StepFinished, StepPlanned
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.frontend.engine_snapshot import EngineObserver, EngineState
    from octavo.observe.events import Event
    from octavo.observe.snapshot import BlockView, EngineSnapshot
    from octavo.outputs import RequestOutput
    from octavo.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block of a request's table after a step."""

    group: int
    position: int
    """In the table: it holds the tokens from `position * block_size` on."""
    block_id: int
    num_filled: int
    ref_cnt: int
    num_new: int
    """Slots that this step wrote."""
    is_published: bool
    """Full and known to the prefix index: later requests that begin alike use it too."""
    hash: str | None
    """SHA-256 over all tokens up to the block's end, first 12 digits; None while it is not published. For people: the
    engine compares the tokens themselves."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """What one request did in one step."""

    step: int
    """The engine's steps, from 0."""
    request: int
    completion: int
    kind: str
    """"prefill" of prompt tokens, "decode" of the token made before, "fork" of a completion that shares a prefill, or
    "recompute" after a preemption."""
    input_token_ids: tuple[int, ...]
    output_token_id: int | None
    """None where a part of the prompt, or of what is recomputed, was not the last."""
    num_cached_before: int
    num_cached_after: int
    """Tokens whose keys and values the cache holds."""
    blocks: tuple[BlockRow, ...]


@dataclass(frozen=True, slots=True)
class RequestStory:
    """One prompt and what came of it."""

    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    num_preemptions: int
    output_token_ids: tuple[tuple[int, ...], ...]
    """Per completion."""
    output_texts: tuple[str, ...]
    finish_reasons: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that has to hold between what was recorded in different places."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Walkthrough:
    """A whole run."""

    model: str
    block_size: int
    requests: tuple[RequestStory, ...]
    steps: tuple[StepRow, ...]
    """In order of time; a step of several requests has a row for each."""
    checks: tuple[Check, ...]
    token_bytes: dict[int, bytes]
    """What every id that appears adds to a text; it may be a part of a character."""

    @property
    def num_completions(self) -> int:
        """Of all requests together."""
        return sum(len(story.output_token_ids) for story in self.requests)

    def text(self, *token_ids: int) -> str:
        """Return the text of some tokens; a character that is not whole becomes a question mark in a box."""
        return b"".join(map(self.token_bytes.__getitem__, token_ids)).decode("utf-8", "replace")

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `json.dumps` takes: the fields, with `token_texts` in place of bytes."""
        document = asdict(self)
        del document["token_bytes"]
        return document | {"token_texts": {token_id: self.text(token_id) for token_id in self.token_bytes}}


def walk_through(
    config: EngineConfig, make_requests: Callable[[LLM], tuple[Sequence[Any], SamplingParams]]
) -> Walkthrough:
    """Load a model, generate for all prompts at once, and tell what happened.

    Args:
        make_requests: returns the prompts, and what they are sampled with.

    Raises: `ConfigError`, `ModelLoadError`, `RequestError`.
    """
    watcher = _Watcher()
    built = build(config, events=watcher)
    observer = watcher.observer = built.make_observer()
    with LLM.from_engine(built.engine) as llm:
        outputs = llm.generate(*make_requests(llm), use_tqdm=False)
        tokenizer = llm.get_tokenizer()
    rows = _rows(watcher, outputs, observer)
    ids = {token_id for output in outputs for token_id in _token_ids(output)}
    return Walkthrough(
        model=config.model,
        block_size=config.block_size,
        requests=tuple(map(_story, outputs)),
        steps=tuple(rows),
        checks=tuple(_checks(rows, outputs, config.block_size)),
        token_bytes={token_id: tokenizer.id_to_bytes(token_id) for token_id in sorted(ids)},
    )


class _WatchedStep(NamedTuple):
    plan: StepPlanned
    result: StepFinished
    state: EngineState
    """After the step, before those that ended in it let go of their blocks."""


class _Watcher:
    """An event sink that copies the block tables after every step."""

    enabled = wants_steps = True
    wants_blocks = False

    def __init__(self) -> None:
        self.steps: list[_WatchedStep] = []
        self.observer: EngineObserver | None = None
        """Of the engine that is watched; set before it has requests."""
        self._plan: StepPlanned | None = None
        self._state: EngineState | None = None

    def emit(self, event: Event) -> None:
        """Take one event, on the engine's thread."""
        if isinstance(event, StepPlanned):
            self._plan, self._state = event, None
        elif (
            isinstance(event, (RequestFinished, StepFinished)) and self._plan is not None and self.observer is not None
        ):
            if self._state is None:
                self._state = self.observer.copy_state()
            if isinstance(event, StepFinished):
                self.steps.append(_WatchedStep(self._plan, event, self._state))
                self._plan = None


def _rows(watcher: _Watcher, outputs: Sequence[RequestOutput], observer: EngineObserver) -> list[StepRow]:
    rows = []
    for step, watched in enumerate(watcher.steps):
        snapshot = observer.describe(watched.state)
        plan = watched.plan
        sampled = dict(zip(plan.logit_seats, watched.result.token_ids, strict=True))
        chunks = dict(
            zip(plan.seats, zip(plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True), strict=True)
        )
        for index, view in enumerate(snapshot.running):
            if view.seat not in chunks and view.seat not in sampled:
                continue
            num_before, num_fed = chunks.get(view.seat, (view.num_prompt_tokens, 0))
            output = outputs[int(view.request_id)]
            known = [*(output.prompt_token_ids or ()), *output.outputs[view.completion].token_ids]
            rows.append(
                StepRow(
                    step=step,
                    request=int(view.request_id),
                    completion=view.completion,
                    kind=_kind(num_before, num_fed, view.num_prompt_tokens, view.num_preemptions),
                    input_token_ids=tuple(known[num_before : num_before + num_fed]),
                    output_token_id=sampled.get(view.seat),
                    num_cached_before=num_before,
                    num_cached_after=num_before + num_fed,
                    blocks=tuple(_blocks(snapshot, index, known, num_before)),
                )
            )
    return rows


def _kind(num_before: int, num_fed: int, num_prompt_tokens: int, num_preemptions: int) -> str:
    if num_fed == 0:
        return "fork"
    if num_before >= num_prompt_tokens and num_fed == 1:
        return "decode"
    return "recompute" if num_preemptions else "prefill"


def _blocks(snapshot: EngineSnapshot, index: int, known: Sequence[int], num_before: int) -> list[BlockRow]:
    """Return the blocks of one running request, group by group, without those that a window left behind."""
    request, block_size = snapshot.running[index], snapshot.kv_cache.block_size
    num_after = request.num_computed_tokens
    rows = []
    for group, (view, table) in enumerate(zip(snapshot.cache_groups, request.block_ids, strict=True)):
        if view.kind == "state":
            continue
        by_id: dict[int, BlockView] = {block.block_id: block for block in view.used}
        for position, block_id in enumerate(table):
            if block_id >= 0:
                start, is_published = position * block_size, position < request.num_published_blocks
                rows.append(
                    BlockRow(
                        group=group,
                        position=position,
                        block_id=block_id,
                        num_filled=min(block_size, max(0, num_after - start)),
                        ref_cnt=by_id[block_id].ref_cnt,
                        num_new=max(0, min(num_after, start + block_size) - max(num_before, start)),
                        is_published=is_published,
                        hash=_content_hash(known[: start + block_size]) if is_published else None,
                    )
                )
    return rows


def _content_hash(token_ids: Sequence[int]) -> str:
    return hashlib.sha256(array("i", token_ids).tobytes()).hexdigest()[:12]


def _story(output: RequestOutput) -> RequestStory:
    return RequestStory(
        prompt_token_ids=tuple(output.prompt_token_ids or ()),
        num_cached_tokens=output.num_cached_tokens or 0,
        num_preemptions=output.metrics.num_preemptions if output.metrics else 0,
        output_token_ids=tuple(tuple(completion.token_ids) for completion in output.outputs),
        output_texts=tuple(completion.text for completion in output.outputs),
        finish_reasons=tuple(completion.finish_reason for completion in output.outputs),
    )


def _token_ids(output: RequestOutput) -> list[int]:
    return [*(output.prompt_token_ids or ()), *(i for completion in output.outputs for i in completion.token_ids)]


def _checks(rows: Sequence[StepRow], outputs: Sequence[RequestOutput], block_size: int) -> list[Check]:
    """Compare what events, block tables and answers say."""
    made: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        if row.output_token_id is not None:
            made.setdefault((row.request, row.completion), []).append(row.output_token_id)
    told = {
        (index, completion.index): completion.token_ids
        for index, output in enumerate(outputs)
        for completion in output.outputs
    }
    num_decodes = sum(row.kind == "decode" for row in rows)
    num_firsts = sum(len(output.outputs) for output in outputs)
    num_tokens = sum(map(len, told.values()))
    holds_all = all(_holds_its_tokens(row, block_size) for row in rows)
    checks = [
        Check("the tokens of the events are those of the answers", made == told),
        Check("after each step the blocks hold as many tokens as were computed", holds_all),
    ]
    if all(output.metrics is None or output.metrics.num_preemptions == 0 for output in outputs):
        prefills = "1 prefill" if num_firsts == 1 else f"{num_firsts} at the end of a prompt"
        text = f"{counted(num_tokens, 'token')} = {prefills} + {counted(num_decodes, 'decode')}"
        checks.insert(0, Check(text, num_tokens == num_firsts + num_decodes))
    return checks


def _holds_its_tokens(row: StepRow, block_size: int) -> bool:
    """Whether the blocks of each group, with those that a window left behind, are filled as far as the events say."""
    first: dict[int, int] = {}
    filled: Counter[int] = Counter()
    for block in row.blocks:
        first.setdefault(block.group, block.position)
        filled[block.group] += block.num_filled
    return all(position * block_size + filled[group] == row.num_cached_after for group, position in first.items())
