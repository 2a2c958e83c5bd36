"""`LLMEngine`: add requests, step, collect outputs. Under `LLM`, and for programs that drive the engine themselves."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.core.request import Request
from octavo.errors import RequestError
from octavo.frontend.call_arguments import adds_special_tokens, checked_priority
from octavo.frontend.detokenizer import Detokenizer
from octavo.frontend.engine_thread import EngineThread
from octavo.frontend.input_processor import EngineInput, InputProcessor
from octavo.frontend.output_processor import OutputProcessor
from octavo.observe.events import RequestRefused
from octavo.outputs import RequestOutput, RequestStateStats
from octavo.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.core.engine_core import EngineCore
    from octavo.frontend.engine_metrics import EngineMetrics, Metric
    from octavo.frontend.input_processor import Prompt
    from octavo.observe.events import EventSink
    from octavo.sampling_params import SamplingParams
    from octavo.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What `build.py` puts together."""

    core: EngineCore
    tokenizer: Tokenizer
    metrics: EngineMetrics
    events: EventSink
    """Also the core's: passes on to `metrics` what it wants, and to whoever else listens."""
    default_sampling_params: SamplingParams
    vocab_size: int
    """Width of the logits."""
    eos_token_ids: frozenset[int]
    """Every id that ends a generation."""
    max_model_len: int
    max_logprobs: int
    seed: int
    weight_formats: Mapping[str, int]
    """Bytes of the matrices in memory, by format."""
    numeric_fingerprint: str


class LLMEngine:
    """Steps run on a thread of their own, while this object's caller turns the last step's tokens into text."""

    def __init__(self, parts: EngineParts) -> None:
        self.tokenizer = parts.tokenizer
        self.default_sampling_params = parts.default_sampling_params
        self.max_model_len = parts.max_model_len
        self.weight_formats = parts.weight_formats
        self.numeric_fingerprint = parts.numeric_fingerprint
        self._core = parts.core
        self._metrics = parts.metrics
        self._events = parts.events
        self._seed = parts.seed
        self._num_added = 0
        self._core_ids: dict[str, str] = {}
        """Of unfinished requests: the id the core knows them by, which is never used twice."""
        self._inputs = InputProcessor(
            parts.tokenizer,
            vocab_size=parts.vocab_size,
            eos_token_ids=parts.eos_token_ids,
            max_model_len=parts.max_model_len,
            max_logprobs=parts.max_logprobs,
        )
        self._outputs = OutputProcessor(parts.tokenizer, parts.numeric_fingerprint)
        self._thread = EngineThread(parts.core)
        weakref.finalize(self, self._thread.close)  # also when the interpreter ends, before modules go
        self._thread.start()  # last, so that an interrupt cannot leave a thread that nobody will close

    @classmethod
    def from_engine_args(cls, engine_args: EngineConfig) -> LLMEngine:
        """Load a model and make an engine for it."""
        from octavo.frontend.build import build_engine

        return build_engine(engine_args)

    def prepare(
        self,
        prompts: Sequence[Prompt | RequestError],
        params: Sequence[SamplingParams],
        *,
        add_special_tokens: bool = True,
        output_kind: RequestOutputKind | None = None,
    ) -> list[EngineInput | RequestError]:
        """Check and tokenise a batch; return for each prompt its input, or why it cannot be served."""
        self._thread.check_alive()
        prepared = self._inputs.process(prompts, params, add_special_tokens=add_special_tokens, output_kind=output_kind)
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
            self._outputs.add(request.request_id, request_id, source, stats)
            self._metrics.track(request.request_id, stats)
            requests.append(request)

        def add() -> None:
            for request in requests:
                self._core.add_request(request)

        self._thread.post(add)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
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
        outputs = self._outputs.process(result.outputs, result.ended_at)
        for output in outputs:
            if output.finished:
                self._metrics.forget(self._core_ids.pop(output.request_id))
                self._metrics.count_finished(output)
        return outputs

    def abort_request(self, request_id: str | Iterable[str], *, cancel_step: bool = False) -> None:
        """End requests without an output. Unknown ids are ignored.

        Args:
            cancel_step: stop the running step, and return only when the requests have let go of everything.
        """
        request_ids = [request_id] if isinstance(request_id, str) else list(request_id)
        core_ids = [self._core_ids.pop(entry) for entry in request_ids if entry in self._core_ids]
        for core_id in core_ids:
            self._outputs.abort(core_id)
            self._metrics.forget(core_id)

        def abort() -> None:
            for core_id in core_ids:
                self._core.abort_request(core_id)

        if cancel_step:
            self._thread.ask(abort, cancel_step=True)
        elif core_ids:
            self._thread.post(abort)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` would return anything, now or later."""
        return len(self._core_ids) > 0

    def get_num_unfinished_requests(self) -> int:
        """Return how many requests have not ended."""
        return len(self._core_ids)

    def get_metrics(self) -> list[Metric]:
        """Return counters and gauges under vLLM's names."""
        metrics, scheduler = self._metrics, self._core.scheduler
        return self._thread.ask(lambda: metrics.snapshot(scheduler))

    @property
    def peak_kv_blocks(self) -> int:
        """Most blocks of the KV cache that running requests held at once."""
        return self._core.scheduler.peak_used_blocks

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns whether that was possible: not while requests run."""
        return self._thread.ask(self._core.reset_prefix_cache)

    def close(self) -> None:
        """Stop what runs, end the threads, free the memory. Idempotent."""
        self._thread.close()

    def _check_fits(self, source: EngineInput) -> EngineInput | RequestError:
        try:
            source.max_tokens = self._core.check_fits(len(source.prompt_token_ids), source.params.max_tokens)
        except RequestError as error:
            return error
        return source

    def _make_request(self, request_id: str, source: EngineInput, priority: int) -> Request:
        params, tokenizer = source.params, self.tokenizer
        arrival = self._num_added
        self._num_added += 1
        return Request(
            f"{request_id}#{arrival}",
            source.prompt_token_ids,
            params,
            arrival=arrival,
            seed=_derived_seed(self._seed, arrival) if params.seed is None else params.seed,
            max_tokens=source.max_tokens,
            priority=priority,
            cache_salt=source.cache_salt,
            make_stop_checker=(lambda: Detokenizer(tokenizer, params)) if params.stop else None,
            is_streamed=params.output_kind is not RequestOutputKind.FINAL_ONLY,
        )


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
