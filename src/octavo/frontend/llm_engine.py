"""`LLMEngine`: add requests, step, collect outputs. Under `LLM`, and for programs that drive the engine themselves."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from octavo.core.request import Request, RequestStatus
from octavo.errors import ConfigError, EngineDeadError, RequestError
from octavo.frontend.call_arguments import adds_special_tokens, checked_priority
from octavo.frontend.detokenizer import Detokenizer
from octavo.frontend.engine_thread import EngineThread
from octavo.frontend.input_processor import EngineInput, InputProcessor
from octavo.frontend.output_processor import OutputProcessor
from octavo.frontend.request_ids import public_request_id, with_public_ids
from octavo.frontend.start import made_of_options, start_engine
from octavo.observe.event_log import RecordedEvent
from octavo.observe.events import RequestRefused
from octavo.outputs import RequestOutput, RequestStateStats
from octavo.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.core.engine_core import EngineCore
    from octavo.frontend.embedding import EmbeddingConfig
    from octavo.frontend.engine_metrics import EngineMetrics, Metric
    from octavo.frontend.engine_snapshot import EngineObserver
    from octavo.frontend.engine_thread import StepResult
    from octavo.frontend.input_processor import Prompt
    from octavo.frontend.model_config import ModelConfig
    from octavo.grammar.compiler import GrammarCompiler
    from octavo.observe.event_log import EventLog
    from octavo.observe.events import EventSink
    from octavo.observe.snapshot import EngineSnapshot, KVCacheStats
    from octavo.pooling_params import PoolingParams
    from octavo.sampling_params import SamplingParams
    from octavo.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What `build.py` puts together."""

    core: EngineCore
    tokenizer: Tokenizer
    metrics: EngineMetrics
    make_observer: Callable[[], EngineObserver]
    events: EventSink
    """Also the core's: passes on to `metrics`, to the observer's history, to the log and to whoever else listens."""
    event_log: EventLog | None
    """None unless events are recorded."""
    default_sampling_params: SamplingParams
    vocab_size: int
    """Width of the logits."""
    hidden_size: int
    """Of the longest embedding."""
    embedding: EmbeddingConfig
    eos_token_ids: tuple[int, ...]
    """Every id that ends a generation, the tokenizer's own first."""
    model_config: ModelConfig
    max_model_len: int
    way_to_more_length: str
    """See length_advice.py."""
    max_logprobs: int
    grammars: GrammarCompiler
    seed: int
    weight_formats: Mapping[str, int]
    """Bytes of the matrices in memory, by format."""
    numeric_fingerprint: str


class LLMEngine:
    """Steps run on a thread of their own, while this object's caller turns the last step's tokens into text."""

    def __init__(self, parts: EngineParts) -> None:
        if not isinstance(parts, EngineParts):
            raise made_of_options("LLMEngine", parts)
        self.tokenizer = parts.tokenizer
        self.model_config = parts.model_config
        self.default_sampling_params = parts.default_sampling_params
        self.max_model_len = parts.max_model_len
        self.way_to_more_length = parts.way_to_more_length
        self.max_logprobs = parts.max_logprobs
        self.vocab_size = parts.vocab_size
        self.weight_formats = parts.weight_formats
        self.numeric_fingerprint = parts.numeric_fingerprint
        self._core = parts.core
        self._metrics = parts.metrics
        self._make_observer = parts.make_observer
        self._events = parts.events
        self._event_log = parts.event_log
        self._grammars = parts.grammars
        self._seed = parts.seed
        self._pooling_type = parts.embedding.pooling_type
        self._num_added = 0
        self._core_ids: dict[str, str] = {}
        """Of unfinished requests: the id the core knows them by, which is never used twice."""
        self._unstarted: dict[str, Request] = {}
        """Requests of which it is not known that they have run, by the core's id."""
        self._inputs = InputProcessor(
            parts.tokenizer,
            vocab_size=parts.vocab_size,
            eos_token_ids=parts.eos_token_ids,
            max_model_len=parts.max_model_len,
            way_to_more_length=parts.way_to_more_length,
            max_logprobs=parts.max_logprobs,
            grammars=parts.grammars,
            hidden_size=parts.hidden_size,
            embedding=parts.embedding,
        )
        self._thread = EngineThread(parts.core)
        self._outputs = OutputProcessor(
            parts.tokenizer,
            parts.numeric_fingerprint,
            parts.metrics,
            self._pooling_type,
            stop=partial(_stop, self._thread, parts.core),
        )
        weakref.finalize(self, self._thread.close)  # also when the interpreter ends, before modules go
        self._thread.start()  # last, so that an interrupt cannot leave a thread that nobody will close

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineConfig,
        usage_context: object = None,
        stat_loggers: None = None,
        enable_multiprocessing: bool = False,
    ) -> LLMEngine:
        """Load a model and make an engine for it. `usage_context` and `enable_multiprocessing` have no effect."""
        del usage_context, enable_multiprocessing
        return start_engine(engine_args, stat_loggers)

    def prepare(
        self,
        prompts: Sequence[Prompt | RequestError],
        params: Sequence[SamplingParams | PoolingParams],
        *,
        add_special_tokens: bool = True,
        output_kind: RequestOutputKind | None = None,
        raise_queue_full: bool = False,
    ) -> list[EngineInput | RequestError]:
        """Check and tokenise a batch; return for each prompt its input, or why it cannot be served.

        Args:
            params: `PoolingParams` embed a prompt instead of going on with it.
            raise_queue_full: raise `QueueFullError` for a grammar that those before it leave no time to be compiled,
                instead of refusing its prompts.
        """
        self._thread.check_alive()
        prepared = self._inputs.process(
            prompts,
            params,
            add_special_tokens=add_special_tokens,
            output_kind=output_kind,
            raise_queue_full=raise_queue_full,
        )
        checked = [entry if isinstance(entry, RequestError) else self._check_fits(entry) for entry in prepared]
        for entry in checked:
            if isinstance(entry, RequestError) and self._events.enabled:
                self._events.emit(RequestRefused(str(entry)))
        return checked

    def add_inputs(self, inputs: Iterable[tuple[str, EngineInput, int]]) -> None:
        """Queue checked requests: (request id, input, priority). They start together, with the next step.

        Raises: `RequestError` if an id is in use, or given twice; `EngineDeadError`. Then none was queued.
        """
        inputs, new_ids = list(inputs), set[str]()
        self._thread.check_alive()
        for request_id, _, _ in inputs:
            if request_id in self._core_ids or request_id in new_ids:
                raise RequestError(f"request id {request_id!r} is in use.", parameter="request_id", value=request_id)
            new_ids.add(request_id)
        arrival_time, queued_at = time.time(), time.monotonic()
        requests = []
        for request_id, source, priority in inputs:
            stats = RequestStateStats(arrival_time=arrival_time, queued_ts=queued_at)
            request = self._make_request(request_id, source, priority)
            self._core_ids[request_id] = request.request_id
            self._unstarted[request.request_id] = request
            self._outputs.add(request.request_id, request_id, source, stats)
            self._metrics.track(request.request_id, source, stats)
            requests.append(request)

        def add() -> None:
            for request in requests:
                self._core.add_request(request)

        self._thread.post(add)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        *,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """Queue one request; it starts with the engine's next step.

        Raises: `RequestError` if it cannot be served; `EngineDeadError`.
        """
        special, rank = adds_special_tokens(tokenization_kwargs), checked_priority(priority)
        (prepared,) = self.prepare([prompt], [params], add_special_tokens=special)
        if isinstance(prepared, RequestError):
            raise prepared
        self.add_inputs([(request_id, prepared, rank)])
        return request_id

    def step(self) -> list[RequestOutput]:
        """Wait a moment for the next step that made something; return what there is to show of it, maybe nothing.

        Returns at once if no request is unfinished. Raises: `EngineDeadError`.
        """
        self._thread.check_alive()
        result = self._thread.next_result() if self._core_ids else None
        if result is None:
            return []
        taken = map(self.take_output, self._accept(result))
        return [output for output in taken if output is not None]

    def collect(self) -> list[str]:
        """Take in all steps that have ended, without waiting; return ids of requests that have something to take.

        Raises: `EngineDeadError` if there are none and there will be none.
        """
        ready = dict[str, None]()
        for result in self._thread.take_results():
            ready.update(dict.fromkeys(self._accept(result)))
        return list(ready)

    def take_output(self, request_id: str) -> RequestOutput | None:
        """Return what a request has made since it was last asked, of several steps perhaps; None if nothing."""
        core_id = self._core_ids.get(request_id)
        output = None if core_id is None else self._outputs.take(core_id)
        if output is not None and output.finished:
            core_id = self._core_ids.pop(request_id)
            self._unstarted.pop(core_id, None)
            self._metrics.finish(core_id, output.num_cached_tokens or 0)
        return output

    def has_ended(self, request_id: str) -> bool:
        """Whether a request makes nothing more; what it has made may still have to be taken."""
        return self._outputs.has_ended(self._core_ids.get(request_id, ""))

    def num_unread(self, request_id: str) -> int:
        """Return how many tokens and logprobs of a request `take_output` has not returned yet."""
        return self._outputs.num_unread(self._core_ids.get(request_id, ""))

    def abort_request(self, request_id: str | Iterable[str], *, cancel_step: bool = False) -> None:
        """End requests without an output. Unknown ids are ignored.

        Args:
            cancel_step: stop the running step, and return only when the requests have let go of everything.
        """
        request_ids = [request_id] if isinstance(request_id, str) else list(request_id)
        core_ids = [self._core_ids.pop(entry) for entry in request_ids if entry in self._core_ids]
        for core_id in core_ids:
            self._outputs.abort(core_id)
            self._unstarted.pop(core_id, None)
            self._metrics.forget(core_id)
        abort = partial(_abort, self._core, core_ids)
        if cancel_step:
            self._thread.ask(abort, cancel_step=True)
        elif core_ids:
            self._thread.post(abort)
            if not self._core_ids:
                self._core.cancel()  # a step that is nobody's any more, and may be a long one

    def end_request(self, request_ids: Iterable[str]) -> None:
        """End requests early with an output, of what they have made so far; their `finish_reason` is "abort"."""
        core_ids = [self._core_ids[entry] for entry in request_ids if entry in self._core_ids]
        self._thread.post(partial(_end, self._thread, self._core, core_ids))

    def check_fits(self, prompt_len: int, max_tokens: int | None) -> int:
        """Return the `max_tokens` that a request of this prompt gets; None means as many as fit.

        Raises: `RequestError` if the request could not be served even alone.
        """
        return self._core.check_fits(prompt_len, max_tokens)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` would return anything, now or later."""
        return len(self._core_ids) > 0

    def knows_any(self, request_ids: Iterable[str]) -> bool:
        """Whether one of these requests has not ended."""
        return any(request_id in self._core_ids for request_id in request_ids)

    def get_num_unfinished_requests(self) -> int:
        """Return how many requests have not ended."""
        return len(self._core_ids)

    def get_metrics(self) -> list[Metric]:
        """Return counters, gauges and histograms under vLLM's names, and more of the cache, as between two steps."""
        known, state = self._thread.ask(lambda: (self.read_metrics(), self._observer.copy_state()))
        return [*known, *self._observer.gauges(state)]

    def read_metrics(self) -> list[Metric]:
        """Return what can be read at once and from any thread, also of an engine that hangs or has failed."""
        return [*self._metrics.snapshot(self._core.scheduler), *self._observer.totals()]

    def snapshot(self) -> EngineSnapshot:
        """Return what the engine is like between two steps: requests, blocks, the last minute."""
        return self._observer.describe(self._thread.ask(self._observer.copy_state), self._metrics.latencies())

    def count_rejection(self) -> None:
        """Count a call that was refused because too many requests wait, which is for the caller to say."""
        self._metrics.count_rejection()

    def kv_cache_stats(self) -> KVCacheStats:
        """Return how well the KV cache is used: blocks used, shared and cached, waste, hits and evictions."""
        return self.snapshot().kv_cache

    def events(self) -> list[RecordedEvent]:
        """Return what the engine decided, the oldest first, as far back as the log reaches. Also after `close`.

        Raises: `ConfigError` for an engine that does not record.
        """
        if self._event_log is None:
            raise ConfigError("This engine records no events: make it with record_events=True.")
        return [RecordedEvent(entry.at, with_public_ids(entry.event)) for entry in self._event_log.entries()]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns whether that was possible: not while requests run."""
        return self._thread.ask(self._core.reset_prefix_cache)

    @cached_property
    def _observer(self) -> EngineObserver:
        """Describes the engine; made for the first who asks."""
        return self._make_observer()

    @property
    def num_waiting(self) -> int:
        """Requests that no step has computed anything of yet."""
        for core_id in [core_id for core_id, request in self._unstarted.items() if _has_run(request)]:
            del self._unstarted[core_id]
        return len(self._unstarted)

    def listen(self, on_result: Callable[[], None]) -> None:
        """Have `on_result` called, on the engine's thread, when `collect` has something, and when the engine ends."""
        self._thread.listen(on_result)

    def set_paused(self, is_paused: bool) -> None:
        """Run no steps until told to go on; requests can come and go meanwhile."""
        self._thread.set_paused(is_paused)

    def end_step(self) -> None:
        """Wait for the end of the step that runs, if one does."""
        self._thread.ask(lambda: None)

    def check_alive(self) -> None:
        """Raise `EngineDeadError` if the engine was closed or has failed."""
        self._thread.check_alive()

    def heartbeat(self) -> tuple[int, int] | None:
        """Return numbers that change as long as the engine works; None while it has nothing to do. For any thread."""
        turns = self._thread.heartbeat()
        return None if turns is None else (turns, self._core.executor.progress)

    def close(self) -> None:
        """Stop what runs, end the threads, free the memory. Idempotent."""
        self._thread.close()
        self._grammars.close()

    def _accept(self, result: StepResult) -> list[str]:
        """Take in a step; return the ids of requests that have something to take."""
        return [public_request_id(core_id) for core_id in self._outputs.accept(result.outputs, result.ended_at)]

    def _check_fits(self, source: EngineInput) -> EngineInput | RequestError:
        try:
            wanted = source.params.max_tokens if source.pooling is None else 0
            source.max_tokens = self.check_fits(len(source.prompt_token_ids), wanted)
        except RequestError as error:
            return error
        return source

    def _make_request(self, request_id: str, source: EngineInput, priority: int) -> Request:
        params, tokenizer, grammar, grammars = source.params, self.tokenizer, source.grammar, self._grammars
        arrival = self._num_added
        self._num_added += 1
        return Request(
            f"{request_id}#{arrival}",
            source.prompt_token_ids,
            params,
            arrival=arrival,
            seed=_derived_seed(self._seed, arrival) if params.seed is None else params.seed,
            max_tokens=source.max_tokens,
            pooling=None if source.pooling is None else self._pooling_type,
            priority=priority,
            cache_salt=source.cache_salt,
            make_stop_checker=(lambda: Detokenizer(tokenizer, params)) if params.stop else None,
            make_constraint=(lambda: grammars.make_matcher(grammar, params)) if grammar else None,
            is_streamed=params.output_kind is not RequestOutputKind.FINAL_ONLY,
        )


def _abort(core: EngineCore, core_ids: Iterable[str]) -> None:
    for core_id in core_ids:
        core.abort_request(core_id)


def _end(thread: EngineThread, core: EngineCore, core_ids: Iterable[str]) -> None:
    """End requests and tell so at once: a paused engine runs no step that would."""
    thread.hand_out([output for core_id in core_ids for output in core.scheduler.abort(core_id)])


def _stop(thread: EngineThread, core: EngineCore, core_id: str) -> None:
    """End a request that the core may still run, unless all has ended."""
    with suppress(EngineDeadError):
        thread.post(partial(_abort, core, [core_id]))


def _has_run(request: Request) -> bool:
    return request.status is not RequestStatus.WAITING or request.num_preemptions > 0


def _derived_seed(engine_seed: int, ordinal: int) -> int:
    """Return a 62-bit seed that looks unrelated to that of any other request of this engine or another.

    Source: the finaliser of SplitMix64, Steele, Lea and Flood 2014.
    """
    mixed = _finalise(_finalise(engine_seed) + ordinal)
    return mixed >> 2


def _finalise(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


_MASK64 = (1 << 64) - 1
