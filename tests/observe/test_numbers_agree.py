"""The same facts told in several places: events, metrics, snapshots, outputs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import pytest

from octavo import LLM, SamplingParams
from octavo.observe.events import (
    BlockAllocated,
    BlockEvicted,
    BlockReleased,
    BlockShared,
    PrefixCacheHit,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    StepFinished,
    StepPlanned,
)
from octavo.outputs import RequestOutput

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama"
Kind = TypeVar("Kind")


class Run:
    """Twelve requests with beginnings in common, in a cache that is too small for them."""

    def __init__(self, **options: Any) -> None:
        small: dict[str, Any] = {"num_gpu_blocks_override": 16, "max_model_len": 128, "max_num_seqs": 6}
        with LLM(str(TINY), record_events=True, **(small | options)) as llm:
            prompts = [[*range(5, 30 + 3 * index), 200 + index] for index in range(12)]
            params = [
                SamplingParams(n=1 + index % 2, temperature=0.5, seed=index, max_tokens=40 + index, ignore_eos=True)
                for index in range(12)
            ]
            self.outputs: list[RequestOutput] = llm.generate(prompts, params, use_tqdm=False)
            self.metrics: Counter[str] = Counter()
            """Values by name, summed over labels."""
            for metric in llm.get_metrics():
                self.metrics[metric.name] += metric.value
            self.snapshot = llm.snapshot()
            self.recorded = llm.events()

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [entry.event for entry in self.recorded if isinstance(entry.event, kind)]


@pytest.fixture(scope="module")
def run() -> Run:
    made = Run()
    assert made.of(RequestPreempted), "the cache is too small"
    assert made.of(BlockEvicted)
    assert made.of(PrefixCacheHit)
    return made


def test_tokens_are_counted_alike(run: Run) -> None:
    told = sum(len(completion.token_ids) for output in run.outputs for completion in output.outputs)
    assert told == sum(len(event.token_ids) for event in run.of(StepFinished))
    assert told == sum(event.num_logit_rows for event in run.of(StepPlanned))
    assert told == run.metrics["vllm:generation_tokens"]
    assert told == sum(second.num_output_tokens for second in run.snapshot.last_minute)
    assert told == sum(output.metrics.num_generation_tokens for output in run.outputs if output.metrics)


def test_each_completion_finishes_once_with_its_numbers(run: Run) -> None:
    events = {(event.request_id, event.completion): event for event in run.of(RequestFinished)}
    assert len(events) == len(run.of(RequestFinished)) == run.metrics["vllm:request_success"] == 18
    for output in run.outputs:
        for completion in output.outputs:
            event = events[output.request_id, completion.index]
            assert event.num_output_tokens == len(completion.token_ids)
            assert event.num_prompt_tokens == len(output.prompt_token_ids or ())
            assert event.finish_reason == completion.finish_reason


def test_preemptions_are_counted_alike(run: Run) -> None:
    counts = Counter((event.request_id, event.completion) for event in run.of(RequestPreempted))
    assert counts.total() == run.metrics["vllm:num_preemptions"]
    told = {output.request_id: output.metrics.num_preemptions for output in run.outputs if output.metrics}
    assert told == {request_id: max(counts[request_id, index] for index in range(2)) for request_id in told}


def test_hits_and_evictions_are_counted_alike(run: Run) -> None:
    stats = run.snapshot.kv_cache
    assert sum(event.num_tokens for event in run.of(PrefixCacheHit)) == stats.num_hit_tokens
    assert stats.num_hit_tokens == run.metrics["vllm:prefix_cache_hits"]
    assert stats.num_queried_tokens == run.metrics["vllm:prefix_cache_queries"]
    assert len(run.of(BlockEvicted)) == stats.num_evictions == run.metrics["octavo:kv_cache_evictions"]


def test_first_admissions_found_what_the_outputs_say(run: Run) -> None:
    first: dict[str, int] = {}
    for event in run.of(RequestAdmitted):
        first.setdefault(event.request_id, event.num_cached_tokens)
    assert first == {output.request_id: output.num_cached_tokens for output in run.outputs}


def test_blocks_that_change_hands_add_up_to_those_in_use(run: Run) -> None:
    ref_cnts: Counter[int] = Counter()
    seen = []
    for entry in run.recorded:
        event = entry.event
        if isinstance(event, BlockAllocated):
            assert ref_cnts[event.block_id] == 0
            ref_cnts[event.block_id] = 1
        elif isinstance(event, (BlockShared, BlockReleased)):
            ref_cnts[event.block_id] += 1 if isinstance(event, BlockShared) else -1
            assert ref_cnts[event.block_id] == event.ref_cnt
        elif isinstance(event, StepPlanned):
            seen.append((sum(count > 0 for count in ref_cnts.values()), event.num_used_blocks))
    assert all(counted == told for counted, told in seen)
    assert max(told for _, told in seen) == run.snapshot.kv_cache.peak_used_blocks
    assert not any(ref_cnts.values()), "nothing is in use at the end"


def test_rows_of_steps_are_all_tokens_that_were_computed(run: Run) -> None:
    rows = sum(event.num_tokens for event in run.of(StepPlanned))
    assert rows == sum(sum(event.num_scheduled_tokens) for event in run.of(StepPlanned))
    assert rows == sum(second.num_tokens for second in run.snapshot.last_minute)


def test_times_of_requests_lie_between_those_of_their_events(run: Run) -> None:
    admitted: dict[str, float] = {}
    finished: dict[str, float] = {}
    for entry in run.recorded:
        if isinstance(entry.event, RequestAdmitted):
            admitted.setdefault(entry.event.request_id, entry.at)
        elif isinstance(entry.event, RequestFinished):
            finished[entry.event.request_id] = entry.at
    for output in run.outputs:
        stats = output.metrics
        assert stats is not None
        assert stats.queued_ts <= stats.scheduled_ts <= admitted[output.request_id] <= stats.first_token_ts
        assert finished[output.request_id] <= stats.last_token_ts


def test_an_engine_that_does_not_record_says_how_to_make_one_that_does() -> None:
    with LLM(str(TINY), kv_cache_memory_bytes="8M") as llm, pytest.raises(ValueError, match="record_events=True"):
        llm.events()
