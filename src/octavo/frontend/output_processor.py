"""What the engine core made, turned into `RequestOutput`s: text, logprobs, timings; so far, as deltas, or at the end.

Runs on the caller's thread while the next step computes. Text that nobody sees before the end is decoded at the end.
What goes wrong in making a request's output ends that request; the others of the step get theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.core.step import NonFiniteError
from octavo.errors import RequestError
from octavo.frontend.detokenizer import Detokenizer, decode_token
from octavo.frontend.embedding import make_embedding
from octavo.outputs import (
    CompletionOutput,
    Logprob,
    OutputError,
    PromptLogprobs,
    RequestOutput,
    RequestStateStats,
    SampleLogprobs,
)
from octavo.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.core.step import EngineCoreOutput, Fault, TokenLogprobs
    from octavo.errors import OctavoError
    from octavo.frontend.engine_metrics import EngineMetrics
    from octavo.frontend.input_processor import EngineInput
    from octavo.pooling_params import PoolingParams, PoolingType
    from octavo.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger("octavo")

_ABORTED = OutputError("request_aborted", "the request was aborted before it had an embedding")
"""Of a pooled request: half a generation can be shown, half an embedding cannot."""


class _Completion:
    """One of a request's n completions as it grows."""

    __slots__ = (
        "_detokenizer", "_lazy", "_num_decoded", "_params", "cumulative_logprob", "finish_reason", "index",
        "last_token_ts", "logprobs", "num_sent_chars", "num_sent_tokens", "stop_reason", "token_ids",
    )  # fmt: skip

    def __init__(self, index: int, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.logprobs: SampleLogprobs | None = None if params.logprobs is None else []
        self.cumulative_logprob: float | None = None if params.logprobs is None else 0.0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.num_sent_tokens = 0
        self.num_sent_chars = 0
        self.last_token_ts = 0.0
        self._params = params
        self._detokenizer = Detokenizer(tokenizer, params) if params.detokenize else None
        self._lazy = params.output_kind is RequestOutputKind.FINAL_ONLY
        self._num_decoded = 0

    def add(self, output: EngineCoreOutput) -> None:
        """Take what one step made."""
        self.token_ids += output.new_token_ids
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        if self._detokenizer is None or (self._lazy and output.finish_reason is None):
            return
        end = len(self.token_ids)
        ended_by_token = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
        if ended_by_token and not self._params.include_stop_str_in_output:
            end -= 1
        self._detokenizer.extend(self.token_ids[self._num_decoded : end])
        self._num_decoded = end

    def shown_text(self) -> str:
        """Text that will not be taken back."""
        if self._detokenizer is None:
            return ""
        text = self._detokenizer.text
        return text if self.finish_reason is not None else text[: self._detokenizer.num_shown]

    def output(self, delta: bool) -> CompletionOutput:
        """Everything so far, or what is new since the last call.

        Mutates: num_sent_tokens, num_sent_chars.
        """
        text = self.shown_text()
        first_token, first_char = (self.num_sent_tokens, self.num_sent_chars) if delta else (0, 0)
        self.num_sent_tokens, self.num_sent_chars = len(self.token_ids), max(self.num_sent_chars, len(text))
        logprobs = self.logprobs
        if delta and logprobs is not None:
            self.logprobs = []  # with each goes a hundred times the memory of its token
        return CompletionOutput(
            index=self.index,
            text=text[first_char:],
            token_ids=self.token_ids[first_token:],
            cumulative_logprob=self.cumulative_logprob,
            logprobs=logprobs[:] if logprobs is not None and not delta else logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class _RequestState:
    """One request: what it asked for, and what it has so far."""

    __slots__ = (
        "completions", "error", "hidden_sum", "input", "is_given_up", "num_cached_tokens", "num_unfinished",
        "prompt_logprobs", "prompt_logprobs_sent", "prompt_scores", "request_id", "stats", "unsent",
    )  # fmt: skip

    def __init__(self, request_id: str, source: EngineInput, stats: RequestStateStats) -> None:
        self.request_id = request_id
        self.input = source
        self.stats = stats
        self.completions: dict[int, _Completion] = {}
        self.num_unfinished = source.params.n
        self.prompt_logprobs: PromptLogprobs | None = None if source.params.prompt_logprobs is None else [None]
        self.prompt_logprobs_sent = False
        self.prompt_scores: list[list[float]] = []
        """Of `prompt_logprob_token_ids`, for each prompt token but the first."""
        self.hidden_sum: NDArray[np.float64] | None = None
        self.num_cached_tokens: int | None = None
        self.error: OutputError | None = None
        self.is_given_up = False
        """Its output could not be made: all it has is its error."""
        self.unsent: set[int] = set()
        """Completions that changed since the last output."""

    @property
    def has_output(self) -> bool:
        """Whether there is something to show."""
        if self.is_given_up:
            return True
        shows_parts = self.input.params.output_kind is not RequestOutputKind.FINAL_ONLY
        return bool(self.unsent) and (shows_parts or self.num_unfinished == 0)


class OutputProcessor:
    """Keeps the state of every unfinished request.

    Args:
        stop: called with the core id of a request whose output cannot be made; must end it in the engine core.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        numeric_fingerprint: str,
        metrics: EngineMetrics,
        pooling_type: PoolingType,
        stop: Callable[[str], None],
    ) -> None:
        self._stop = stop
        self._tokenizer = tokenizer
        self._pooling_type = pooling_type
        self._metrics = metrics
        self._numeric_fingerprint = numeric_fingerprint
        self._requests: dict[str, _RequestState] = {}
        self._token_texts: dict[int, str] = {}

    def add(self, core_id: str, request_id: str, source: EngineInput, stats: RequestStateStats) -> None:
        """Start to collect for a request, which the engine core calls `core_id`."""
        stats.numeric_fingerprint = self._numeric_fingerprint
        self._requests[core_id] = _RequestState(request_id, source, stats)

    def abort(self, core_id: str) -> None:
        """Forget a request; what the engine still makes for it is dropped."""
        self._requests.pop(core_id, None)

    def accept(self, outputs: Iterable[EngineCoreOutput], now: float) -> list[str]:
        """Take in what a step made; return the core ids of the requests for which `take` has something.

        Args:
            now: when the step ended, on the monotonic clock.
        """
        touched: dict[str, _RequestState] = {}
        for core_output in outputs:
            state = self._requests.get(core_output.request_id)
            if state is not None and not state.is_given_up:
                try:
                    self._add(state, core_output, now)
                except Exception as error:
                    self._give_up(core_output.request_id, state, error)
                touched[core_output.request_id] = state
        return [core_id for core_id, state in touched.items() if state.has_output]

    def num_unread(self, core_id: str) -> int:
        """Return how many tokens and logprobs of a request `take` has not returned yet."""
        state = self._requests.get(core_id)
        if state is None:
            return 0
        unsent = (state.completions[index] for index in state.unsent)
        num_tokens = sum(len(completion.token_ids) - completion.num_sent_tokens for completion in unsent)
        return num_tokens * (1 + max(0, state.input.params.logprobs or 0))

    def has_ended(self, core_id: str) -> bool:
        """Whether a request makes nothing more, or is not known; its last output may still have to be taken."""
        state = self._requests.get(core_id)
        return state is None or state.num_unfinished == 0

    def take(self, core_id: str) -> RequestOutput | None:
        """Return what there is to show of a request, made of all that came since the last call; None if nothing did.

        A request that has finished is then forgotten.
        """
        state = self._requests.get(core_id)
        if state is None or not state.has_output:
            return None
        output = None
        if not state.is_given_up:
            try:
                output = self._next_output(state)
            except Exception as error:
                self._give_up(core_id, state, error)
        if state.num_unfinished == 0:
            del self._requests[core_id]
        return output or _bare_output(state)

    def _give_up(self, core_id: str, state: _RequestState, error: Exception) -> None:
        """End a request whose output could not be made."""
        logger.error("the output of request %s could not be made", state.request_id, exc_info=error)
        state.is_given_up = True
        state.num_unfinished = 0
        state.error = _output_error(error)
        self._stop(core_id)

    def _add(self, state: _RequestState, output: EngineCoreOutput, now: float) -> None:
        params, stats = state.input.params, state.stats
        completion = state.completions.get(output.index)
        if completion is None:
            completion = state.completions[output.index] = _Completion(output.index, self._tokenizer, params)
        completion.add(output)
        state.num_unfinished -= output.finish_reason is not None
        if output.new_logprobs is not None and completion.logprobs is not None:
            for position in output.new_logprobs:
                completion.logprobs.append(self._logprobs(position, params.logprob_token_ids))
                completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + position.logprobs[0]
        if output.prompt_logprobs is not None and state.prompt_logprobs is not None:
            state.prompt_logprobs.extend(map(self._logprobs, output.prompt_logprobs))
        state.prompt_scores += [entry.scores for entry in output.prompt_logprobs or () if entry.scores is not None]
        if output.hidden_sum is not None:
            state.hidden_sum = output.hidden_sum
            self._stamp(state, completion, 0, now)
        elif state.input.pooling is not None and output.finish_reason == "abort":
            state.error = _ABORTED
        if output.error is not None:
            state.error = _output_error(output.error)
            stats.is_corrupted = stats.is_corrupted or isinstance(output.error, NonFiniteError)
        if state.num_cached_tokens is None:
            state.num_cached_tokens = output.num_cached_tokens
        stats.num_preemptions = max(stats.num_preemptions, output.num_preemptions)
        if output.index == 0:
            stats.seed = output.seed
        if output.new_token_ids:
            self._stamp(state, completion, len(output.new_token_ids), now)
        if output.new_token_ids or output.finish_reason is not None:
            state.unsent.add(output.index)

    def _stamp(self, state: _RequestState, completion: _Completion, num_tokens: int, now: float) -> None:
        """Note when tokens came."""
        stats = state.stats
        stats.num_generation_tokens += num_tokens
        stats.last_token_ts = now
        if not stats.first_token_ts:
            stats.first_token_ts = now
            stats.first_token_latency = now - stats.queued_ts
            self._metrics.count_first_token(stats, len(state.input.prompt_token_ids), state.num_cached_tokens or 0)
        if completion.last_token_ts:
            self._metrics.count_gap(now - completion.last_token_ts, num_tokens)
        completion.last_token_ts = now

    def _next_output(self, state: _RequestState) -> RequestOutput:
        delta = state.input.params.output_kind is RequestOutputKind.DELTA
        chosen = sorted(state.unsent) if delta else sorted(state.completions)
        state.unsent.clear()
        prompt_logprobs = None if delta and state.prompt_logprobs_sent else state.prompt_logprobs
        state.prompt_logprobs_sent = True
        return RequestOutput(
            request_id=state.request_id,
            prompt=state.input.prompt,
            prompt_token_ids=state.input.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=[state.completions[index].output(delta) for index in chosen],
            finished=state.num_unfinished == 0,
            metrics=state.stats,
            num_cached_tokens=state.num_cached_tokens,
            error=state.error,
            prompt_token_id_logprobs=_listed_scores(state),
            embedding=self._embedding(state),
        )

    def _embedding(self, state: _RequestState) -> list[float] | None:
        if state.hidden_sum is None or state.input.pooling is None:
            return None
        num_rows = len(state.input.prompt_token_ids) if self._pooling_type == "mean" else 1
        return make_embedding(state.hidden_sum, num_rows, state.input.pooling)

    def _logprobs(self, position: TokenLogprobs, listed: Sequence[int] | None = None) -> dict[int, Logprob]:
        """The chosen token first; the rest are the most probable ones in order, among which it may appear again.

        Args:
            listed: instead of the most probable ones, those that the request named.
        """
        entries: dict[int, Logprob] = {}
        for order, (token_id, logprob) in enumerate(zip(position.token_ids, position.logprobs, strict=True)):
            entries.setdefault(token_id, Logprob(logprob, order or position.rank, self._text(token_id)))
        if listed is not None:
            for token_id, logprob in zip(listed, position.scores or (), strict=True):
                entries.setdefault(token_id, Logprob(logprob, None, self._text(token_id)))
        return entries

    def _text(self, token_id: int) -> str:
        texts = self._token_texts
        if token_id not in texts:
            texts[token_id] = decode_token(self._tokenizer, token_id)
        return texts[token_id]


def _bare_output(state: _RequestState) -> RequestOutput:
    """The last output of a request that was given up: nothing but its error."""
    return RequestOutput(
        request_id=state.request_id,
        prompt=state.input.prompt,
        prompt_token_ids=state.input.prompt_token_ids,
        prompt_logprobs=None,
        outputs=[CompletionOutput(index, "", [], finish_reason="error") for index in range(state.input.params.n)],
        finished=True,
        metrics=state.stats,
        num_cached_tokens=state.num_cached_tokens,
        error=state.error,
    )


def _listed_scores(state: _RequestState) -> NDArray[np.float32] | None:
    params = state.input.params
    if params.prompt_logprob_token_ids is None:
        return None
    return np.array(state.prompt_scores[params.prompt_logprob_start or 0 :], np.float32)


def _output_error(fault: Fault) -> OutputError:
    if isinstance(fault, RequestError):
        return OutputError(fault.code, str(fault))
    is_said = isinstance(fault, (str, NonFiniteError))
    message = str(fault) if is_said else f"{type(fault).__name__}: {fault}"
    return OutputError("request_failed", message)


def failed_output(request_id: str, prompt: object, error: OctavoError) -> RequestOutput:
    """The output of a prompt that was refused: one empty completion that ended with "error"."""
    completion = CompletionOutput(index=0, text="", token_ids=[], finish_reason="error")
    return RequestOutput(
        request_id=request_id,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=None,
        prompt_logprobs=None,
        outputs=[completion],
        finished=True,
        error=OutputError(error.code, str(error)),
    )


def aborted_output(request_id: str, prompt: object, params: SamplingParams | PoolingParams) -> RequestOutput:
    """The output of a request that was ended before it was queued: empty completions that ended with "abort"."""
    num_completions = params.n if isinstance(params, SamplingParams) else 1
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return RequestOutput(
        request_id=request_id,
        prompt=text if isinstance(text, str) else None,
        prompt_token_ids=None,
        prompt_logprobs=None,
        outputs=[CompletionOutput(index, "", [], finish_reason="abort") for index in range(num_completions)],
        finished=True,
        error=None if isinstance(params, SamplingParams) else _ABORTED,
    )
