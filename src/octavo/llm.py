"""`LLM`: the offline face of the engine, with vLLM's methods, plus `stream` and an answer for each bad prompt."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from octavo.config import EngineConfig
from octavo.errors import EngineDeadError, RequestError
from octavo.frontend.call_arguments import (
    adds_special_tokens,
    as_prompts,
    refuse,
    spread,
    spread_priority,
    template_variables,
)
from octavo.frontend.input_processor import EngineInput
from octavo.frontend.mailboxes import Mailboxes
from octavo.frontend.output_processor import failed_output
from octavo.frontend.pooling_calls import PoolingCalls
from octavo.frontend.progress import ProgressBar
from octavo.frontend.start import start_engine
from octavo.sampling_params import RequestOutputKind, SamplingParams
from octavo.vllm_options import refuse_sleep

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from octavo.engine_options import EngineOptions
    from octavo.frontend.call_arguments import OnError
    from octavo.frontend.engine_metrics import Metric
    from octavo.frontend.input_processor import Prompt
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.frontend.model_config import ModelConfig
    from octavo.observe.event_log import RecordedEvent
    from octavo.observe.snapshot import EngineSnapshot, KVCacheStats
    from octavo.outputs import BeamSearchOutput, RequestOutput
    from octavo.sampling_params import BeamSearchParams
    from octavo.tokenizer.tokenizer import Tokenizer

Conversation = Sequence[Mapping[str, Any]]
"""Messages: dicts with `role` and `content`."""
Prepared = list[EngineInput | RequestError]


class LLM(PoolingCalls):
    """A model ready to generate and to embed. Holds threads and memory until `close()`; also a context manager.

    Args:
        model: a GGUF file, a directory, a hub id or a built-in name.
        options: see `EngineConfig`. vLLM's options without an effect here are accepted with a notice.

    Raises: `ConfigError`, `ModelLoadError`; `TypeError` for an unknown option.
    """

    @overload
    def __init__(self, model: str | os.PathLike[str], **options: Unpack[EngineOptions]) -> None: ...
    @overload
    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None: ...
    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        self._start(EngineConfig(**{"model": model, **options}))

    @classmethod
    def from_engine_args(cls, engine_args: EngineConfig) -> LLM:
        """Make one from options in an `EngineConfig`."""
        llm = cls.__new__(cls)
        llm._start(engine_args)
        return llm

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> LLM:
        """Make one around an engine that runs; closing it closes the engine."""
        llm = cls.__new__(cls)
        llm._attach(engine)
        return llm

    def _start(self, config: EngineConfig) -> None:
        self._attach(start_engine(config))

    def _attach(self, engine: LLMEngine) -> None:
        self.llm_engine = engine
        self._ordinals = itertools.count()
        self._mail = Mailboxes(engine)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: None = None,
        on_error: OnError = "raise",
    ) -> list[RequestOutput]:
        """Generate for all prompts; return their outputs in the order of the prompts.

        Args:
            prompts: one or a list of: text, token ids, dicts with `prompt` or `prompt_token_ids`, and perhaps
                `cache_salt`.
            sampling_params: one for all, or one for each; None takes the model's own defaults.
            use_tqdm: show progress; or a callable that makes a progress bar as `tqdm` does.
            priority: one for all, or one for each; lower goes first, with `scheduling_policy="priority"`.
            tokenization_kwargs: `add_special_tokens`.
            on_error: "raise" refuses the whole list, before anything runs, if one prompt cannot be served; "return"
                gives each such prompt an output with `error` set.

        Raises: `RequestError` naming the first bad prompt; `EngineDeadError`.
        """
        _refuse_later_features(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        listed = as_prompts(prompts)
        prepared = self._prepare(listed, sampling_params, tokenization_kwargs, RequestOutputKind.FINAL_ONLY)
        return self._generate(listed, prepared, priority, use_tqdm, on_error)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: Literal["auto", "string"] = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: None = None,
        *,
        on_error: OnError = "raise",
    ) -> list[RequestOutput]:
        """Generate the next message of one conversation or of several.

        Args:
            messages: dicts with `role` and `content`, or a list of such lists.
            chat_template: a Jinja template instead of the model's own.
            chat_template_kwargs: variables for the template.

        The other arguments are those of `generate`; special tokens come from the template alone.

        Raises: `RequestError` naming the first bad conversation; `EngineDeadError`.
        """
        _refuse_later_features(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        if chat_template_content_format not in ("auto", "string"):
            refuse("chat_template_content_format", chat_template_content_format, 'must be "auto" or "string"')
        prompts, tokenization = self._render(
            messages,
            chat_template_kwargs,
            tokenization_kwargs,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
        )
        prepared = self._prepare(prompts, sampling_params, tokenization, RequestOutputKind.FINAL_ONLY)
        return self._generate(prompts, prepared, priority, use_tqdm, on_error)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> Iterator[RequestOutput]:
        """Generate for all prompts; yield an output whenever one of them has something new.

        Outputs hold what `output_kind` of their parameters says; `request_id` is the index of the prompt. Leaving the
        loop early ends the requests. Arguments are those of `generate`.

        Raises: at once, `RequestError` naming the first bad prompt.
        """
        listed = as_prompts(prompts)
        return self._start_stream(listed, sampling_params, priority, tokenization_kwargs, on_error)

    def stream_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        on_error: OnError = "raise",
    ) -> Iterator[RequestOutput]:
        """Generate the next message of one conversation or of several; yield outputs as `stream` does.

        Arguments are those of `chat`. Raises: as `stream`.
        """
        prompts, tokenization = self._render(
            messages,
            chat_template_kwargs,
            tokenization_kwargs,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
        )
        return self._start_stream(prompts, sampling_params, priority, tokenization, on_error)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: None = None,
        use_tqdm: bool | Callable[..., Any] = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Search for the most probable continuations of each prompt; return the best of them, best first.

        Args:
            concurrency_limit: prompts that are searched for at once; None for all.

        Raises: `RequestError` naming the first bad prompt; `EngineDeadError`.
        """
        from octavo.frontend.beam_search import BeamSearch, check_room, step_params

        _refuse_later_features(lora_request=lora_request)
        step = step_params(params, self.llm_engine.max_logprobs)
        prepared = self._prepare(as_prompts(prompts), step, None, RequestOutputKind.FINAL_ONLY)
        _raise_first(prepared)
        inputs = [entry for entry in prepared if isinstance(entry, EngineInput)]
        check_room(inputs, params, self.llm_engine)
        generate = partial(self.generate, sampling_params=step, use_tqdm=False)
        return BeamSearch(params, self.llm_engine.tokenizer, generate).run(inputs, concurrency_limit, use_tqdm)

    @property
    def model_config(self) -> ModelConfig:
        """What the model is, and what is served of it."""
        return self.llm_engine.model_config

    def sleep(self, *_given: object, **_options: object) -> NoReturn:
        """Not supported. Raises: `ConfigError` that says what to do instead."""
        refuse_sleep()

    def wake_up(self, *_given: object, **_options: object) -> NoReturn:
        """Not supported, as `sleep`."""
        refuse_sleep()

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what the model's generation config recommends."""
        return self.llm_engine.default_sampling_params.clone()

    def get_metrics(self) -> list[Metric]:
        """Return counters and gauges of the engine, under vLLM's names."""
        return self.llm_engine.get_metrics()

    def snapshot(self) -> EngineSnapshot:
        """Return what the engine is like between two steps: requests, blocks, the last minute."""
        return self.llm_engine.snapshot()

    def events(self) -> list[RecordedEvent]:
        """Return what the engine decided, the oldest first, as far back as the log reaches. Also after `close`.

        Raises: `ConfigError` for an engine that was made without `record_events=True`.
        """
        return self.llm_engine.events()

    def kv_cache_stats(self) -> KVCacheStats:
        """Return how well the KV cache is used: blocks used, shared and cached, waste, hits and evictions."""
        return self.llm_engine.kv_cache_stats()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes. Returns whether that was possible: not while requests run."""
        if reset_running_requests:
            refuse("reset_running_requests", True, "is not supported; wait for the requests, or close their stream")
        if reset_connector:
            refuse("reset_connector", True, "is not supported: there is no cache outside this process")
        return self.llm_engine.reset_prefix_cache()

    def close(self) -> None:
        """Stop what runs, end the threads, free the memory. Idempotent."""
        self.llm_engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _render(
        self,
        messages: Conversation | Sequence[Conversation],
        chat_template_kwargs: dict[str, Any] | None,
        tokenization_kwargs: dict[str, Any] | None,
        **options: Any,
    ) -> tuple[list[Any], dict[str, bool]]:
        """Return the prompt of each conversation, or why it has none; and how they are to be tokenised."""
        options = template_variables(chat_template_kwargs) | options
        prompts: list[Any] = []
        for conversation in _as_conversations(messages):
            try:
                prompts.append(self.get_tokenizer().apply_chat_template(conversation, tokenize=False, **options))
            except RequestError as error:
                prompts.append(error)
        return prompts, {"add_special_tokens": adds_special_tokens(tokenization_kwargs, default=False)}

    def _prepare(
        self,
        prompts: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        tokenization_kwargs: dict[str, Any] | None,
        output_kind: RequestOutputKind | None,
    ) -> Prepared:
        own = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params = spread("params", own, len(prompts))
        if not all(isinstance(entry, SamplingParams) for entry in params):
            raise TypeError(f"sampling_params must be SamplingParams or a list of them, got {type(own).__name__}")
        special = adds_special_tokens(tokenization_kwargs)
        return self.llm_engine.prepare(prompts, params, add_special_tokens=special, output_kind=output_kind)

    def _generate(
        self,
        prompts: Sequence[Any],
        prepared: Prepared,
        priority: int | Sequence[int] | None,
        use_tqdm: bool | Callable[..., Any],
        on_error: OnError,
    ) -> list[RequestOutput]:
        _check_on_error(on_error)
        priorities = spread_priority(priority, len(prompts))
        if on_error == "raise":
            _raise_first(prepared)
        results: dict[int, RequestOutput] = {}
        with ProgressBar(use_tqdm, len(prompts)) as progress:
            for output in self._stream(prompts, prepared, priorities):
                results[int(output.request_id)] = output
                progress.advance(output)
        return [results[index] for index in range(len(prompts))]

    def _start_stream(
        self,
        prompts: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: dict[str, Any] | None,
        on_error: OnError,
    ) -> Iterator[RequestOutput]:
        """Check everything now, and generate when iterated."""
        _check_on_error(on_error)
        prepared = self._prepare(prompts, sampling_params, tokenization_kwargs, None)
        priorities = spread_priority(priority, len(prompts))
        if on_error == "raise":
            _raise_first(prepared)
        return self._stream(prompts, prepared, priorities)

    def _stream(self, prompts: Sequence[Any], prepared: Prepared, priorities: Sequence[int]) -> Iterator[RequestOutput]:
        good: list[tuple[str, EngineInput, int]] = []
        index_of: dict[str, int] = {}
        for index, entry in enumerate(prepared):
            if isinstance(entry, RequestError):
                yield failed_output(str(index), prompts[index], entry)
            else:
                request_id = str(next(self._ordinals))
                good.append((request_id, entry, priorities[index]))
                index_of[request_id] = index
        open_ids = set(index_of)
        arrived = self._mail.open(open_ids)
        try:
            self.llm_engine.add_inputs(good)
            while open_ids:
                self._mail.wait(arrived, open_ids)
                while arrived:
                    output = arrived.popleft()
                    if output.finished:
                        open_ids.discard(output.request_id)
                    output.request_id = str(index_of[output.request_id])
                    yield output
        except GeneratorExit:
            self._abandon(open_ids, cancel_step=False)
            raise
        except BaseException:
            self._abandon(open_ids, cancel_step=True)
            raise
        finally:
            self._mail.close(index_of)

    def _abandon(self, request_ids: set[str], *, cancel_step: bool) -> None:
        try:
            self.llm_engine.abort_request(list(request_ids), cancel_step=cancel_step)
        except EngineDeadError:
            return


def _as_conversations(messages: Any) -> list[Any]:
    """One conversation, or a list of them: a list of lists is several."""
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
    if is_list and messages and all(isinstance(entry, Sequence) and not isinstance(entry, str) for entry in messages):
        return list(messages)
    return [messages]


def _raise_first(prepared: Prepared) -> None:
    for index, entry in enumerate(prepared):
        if isinstance(entry, RequestError):
            message = str(entry) if len(prepared) == 1 else f"prompt {index}: {entry}"
            raise RequestError(message, parameter=entry.parameter, value=entry.value) from entry


def _check_on_error(on_error: object) -> None:
    if on_error not in ("raise", "return"):
        refuse("on_error", on_error, 'must be "raise" or "return"')


def _refuse_later_features(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            refuse(name, value, "is not supported")
