"""One random life of a small engine, and what must be true at its end. Every choice comes from a given function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core_helpers import FULL, STATE, Engine, Window, make_request, sum_alone, tokens_alone
from fake_executor import Seat

from octavo.core.request import Request
from octavo.core.step import SchedulerOutput
from octavo.errors import RequestError, StepCancelledError
from octavo.observe.events import EngineStalled, StepFailed

Choose = Callable[[Sequence[Any]], Any]

ATTENTION = [(FULL,), (FULL,), (FULL, 5), (3,), (4, FULL), (1, FULL, 9)]
HYBRID = [(FULL, STATE), (FULL, STATE), (FULL, STATE, STATE), (20, STATE), (FULL, 17, STATE)]
POISON = 60
"""A token that breaks every step that computes it. Only prompts have it."""
KINDS = ("plain",) * 6 + ("poison", "row", "pair", "fragile", "scored", "last", "mean")


class Interrupted(BaseException):
    """Ends a step as Ctrl-C would."""


class PairStop:
    """Stops at the second token below 10: a state that has to survive preemption."""

    def __init__(self) -> None:
        self._num_small = 0

    def append(self, token_id: int) -> str | None:
        self._num_small += token_id < 10
        return "pair" if self._num_small == 2 else None


class FragileStop:
    """Raises at the first token below 5, as a broken detokenizer might."""

    def append(self, token_id: int) -> str | None:
        if token_id < 5:
            raise ValueError("cannot decode")
        return None


class EngineLife:
    """Adds, steps, aborts, breaks and cancels; invariants are checked after each step."""

    def __init__(self, choose: Choose, windows: Sequence[tuple[Window, ...]]) -> None:
        chunked = choose([True, True, False])
        own_windows = choose(windows)
        hybrid = STATE in own_windows
        self.scale = 4 if hybrid else 1
        """States have borders at multiples of 16 tokens, so that lengths must be larger."""
        max_model_len = 24 * self.scale
        self.engine = Engine(
            num_blocks=[choose(range(1, 9) if window == STATE else range(2, 25)) for window in own_windows],
            windows=own_windows,
            block_size=choose([16, 16, 32] if hybrid else [1, 2, 3, 4]),
            share=choose([0.5, 0.8, 1.0]),
            snapshot_interval=choose([32, 64]),
            max_num_seqs=choose(range(1, 7)),
            max_num_batched_tokens=choose(range(1, 20 * self.scale + 1)) if chunked else max_model_len,
            max_model_len=max_model_len,
            long_prefill_token_threshold=choose([0, 1, 3, 3 * self.scale]),
            enable_chunked_prefill=chunked,
            policy=choose(["fcfs", "priority"]),
            enable_prefix_caching=choose([True, True, False]),
        )
        self.requests: dict[str, Request] = {}
        self.aborted: set[str] = set()
        self.fault: tuple[str, BaseException] | None = None
        """Stage and error of the next step, if it is to fail."""
        self.engine.executor.fault = self._fault
        self.engine.executor.row_error = self._row_error

    def add(self, choose: Choose) -> None:
        kind = choose(KINDS)
        prompt = [*range(choose(range(15)) * self.scale), *(choose(range(4)) for _ in range(choose(range(4))))]
        stop_checkers: dict[str, Any] = {"pair": PairStop, "fragile": FragileStop}
        request = make_request(
            f"{kind}{len(self.requests)}",
            [*prompt, POISON] if kind == "poison" else prompt,
            arrival=len(self.requests),
            seed=len(self.requests) % 3,
            max_tokens=choose(range(1, 16)) * choose([1, self.scale]),
            n=1 if kind in ("last", "mean") else choose([1, 1, 1, 2, 3, 7]),
            pooling=kind if kind in ("last", "mean") else None,
            priority=choose([-1, 0, 1]),
            cache_salt=choose([None, None, None, "salt"]),
            make_stop_checker=stop_checkers.get(kind),
            is_streamed=choose([True, False]),
            stop_token_ids=[11],
            ignore_eos=choose([True, False]),
            min_tokens=choose([0, 1]),
            temperature=1.0,
            prompt_logprobs=0 if kind == "scored" else None,
        )
        try:
            self.engine.core.add_request(request)
        except RequestError:
            return  # an empty prompt, or a request that can never fit
        self.requests[request.request_id] = request

    def advance(self, choose: Choose) -> None:
        self.engine.advance(choose(range(1, 5)))

    def break_a_step(self, choose: Choose) -> None:
        error = choose([RuntimeError("once"), StepCancelledError("cancelled"), Interrupted()])
        self.fault = (choose(["submit", "body"]), error)
        try:
            self.engine.advance()
        except Interrupted:
            self.engine.check()
        self.fault = None

    def abort(self, choose: Choose) -> None:
        if self.requests:
            request_id = choose(sorted(self.requests))
            self.engine.core.abort_request(request_id)
            self.aborted.add(request_id)

    def reset_prefix_cache(self, choose: Choose) -> None:
        del choose
        was_used = self.engine.manager.pool.used_bytes > 0
        assert self.engine.core.reset_prefix_cache() is not was_used

    def end(self) -> None:
        """Let everything end, and check what came."""
        completions = self.engine.finish(3_000)
        blamed = {event.guilty_request_id for event in self.engine.log.of(StepFailed)}
        assert not self.engine.log.of(EngineStalled)
        for request_id, request in self.requests.items():
            for index in range(request.params.n):
                completion = completions[request_id, index]
                if request.pooling is not None and completion.finish_reason == "stop":
                    assert completion.last.hidden_sum.tolist() == [sum_alone(request)]
                    assert completion.token_ids == []
                    continue
                self._check_end(request, index, completion.token_ids, completion.finish_reason, request_id in blamed)
            if request_id.startswith("scored") and completions[request_id, 0].finish_reason in ("stop", "length"):
                assert completions[request_id, 0].scored_ids == request.token_ids.tolist()[1 : request.prompt_len]

    def _check_end(self, request: Request, index: int, token_ids: list[int], reason: str | None, blamed: bool) -> None:
        """Assert that a completion ended as it must, with the tokens it gives alone or, cut short, their beginning."""
        kind = request.request_id.rstrip("0123456789")
        if kind == "fragile":
            request.make_stop_checker = None  # the expectation decodes nothing
        expected, natural_reason = tokens_alone(request, index)
        assert token_ids == expected[: len(token_ids)]
        if reason == "abort":
            assert request.request_id in self.aborted
        elif reason == "error":
            assert kind in ("poison", "row", "fragile") or blamed
        else:
            assert kind != "poison"
            assert (token_ids, reason) == (expected, natural_reason)

    def _fault(self, plan: SchedulerOutput, stage: str) -> None:
        if self.fault is not None and self.fault[0] == stage:
            raise self.fault[1]
        if stage == "body" and any(POISON in tokens for _, tokens in self.engine.executor.scheduled_tokens(plan)):
            raise RuntimeError("poisoned")

    def _row_error(self, seat: Seat, position: int) -> str | None:
        bad_seed = seat.request_id.startswith("row") and seat.seed % 2
        return "not finite" if bad_seed and position >= 9 else None
