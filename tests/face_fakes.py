"""An engine without a model: a byte-level tokenizer (id b is byte b), and an executor that computes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from octavo.cache_spec import AttentionGroupSpec
from octavo.config import SchedulerConfig
from octavo.core.engine_core import EngineCore
from octavo.core.executor import CacheCapacity
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.scheduler import Scheduler
from octavo.core.step import ModelRunnerOutput, NonFiniteError, SchedulerOutput, TokenLogprobs
from octavo.errors import RequestError, StepCancelledError
from octavo.frontend.embedding import EmbeddingConfig
from octavo.frontend.engine_metrics import EngineMetrics
from octavo.frontend.engine_snapshot import EngineObserver
from octavo.frontend.llm_engine import EngineParts, LLMEngine
from octavo.frontend.model_config import ModelConfig
from octavo.grammar.compiler import GrammarCompiler
from octavo.llm import LLM
from octavo.observe.event_log import EventLog
from octavo.observe.events import EventSink, EventTee
from octavo.observe.history import StepHistory
from octavo.pooling_params import PoolingType
from octavo.sampling_params import SamplingParams

EOS = 256
HIDDEN = 4
"""Numbers of a hidden state: the token id, its position, 1 and 0."""
IM_START = 257
TURNS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A chat template."""


class ByteTokenizer:
    """The tokenizer's interface over 256 bytes, two special tokens and any further tokens."""

    def __init__(self, *extra_tokens: str, vocab_size: int | None = None) -> None:
        self._bytes = [bytes([value]) for value in range(256)] + [b"<|end|>", b"<|start|>"]
        self._bytes += [token.encode() for token in extra_tokens]
        self.vocab_size = vocab_size or len(self._bytes)
        self.eos_token_ids = (EOS,)
        self.special_token_ids = frozenset({EOS, IM_START})
        self.chat_templates: dict[str, str] = {}
        self.num_encode_calls = 0

    def id_to_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        self.num_encode_calls += 1
        del add_special_tokens
        return [list(text.encode()) for text in texts]

    def get_vocab(self) -> dict[str, int]:
        return {token.decode("latin-1"): index for index, token in enumerate(self._bytes)}

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        kept = [i for i in token_ids if not (skip_special_tokens and i in self.special_token_ids)]
        return b"".join(map(self.id_to_bytes, kept)).decode("utf-8", "replace")

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        if not conversation:
            raise RequestError("messages cannot be empty", parameter="messages")
        turns = [f"{message['role']}: {message['content']}\n" for message in conversation]
        return "".join(turns) + ("assistant: " if options.get("add_generation_prompt", True) else "")

    def render_arguments(self, conversation: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Of `render_chat`, which makes of them what `apply_chat_template` does."""
        opens = options.get("add_generation_prompt", True)
        return {"template": TURNS, "messages": conversation, "add_generation_prompt": opens}


class FakeHandle:
    def __init__(self, plan: SchedulerOutput) -> None:
        self.plan = plan


class FakeExecutor:
    """Runs no model: the next token of a request is a function of its tokens so far.

    Args:
        next_token: from all token ids of a request, and where its prompt ends, to its next token id.
        step_seconds: how long a step takes; `cancel` ends it early.
    """

    def __init__(self, next_token: Callable[[list[int], int], int], num_blocks: int, step_seconds: float = 0.0) -> None:
        self.next_token = next_token
        self.num_blocks = num_blocks
        self.step_seconds = step_seconds
        self.is_shut_down = False
        self.on_submit: Callable[[], None] = lambda: None
        self.num_cancelled = 0
        self.broken_request: str | None = None
        """The request whose id begins like this makes every step that holds it fail."""
        self._seats: dict[int, tuple[str, list[int], int, SamplingParams]] = {}
        self._sums: dict[int, tuple[PoolingType, np.ndarray]] = {}
        """Of seats that are pooled."""
        self._cancelled = threading.Event()

    def capacity(self) -> CacheCapacity:
        return CacheCapacity(self.num_blocks * SPEC.block_bytes, (self.num_blocks,))

    def submit(self, plan: SchedulerOutput) -> FakeHandle:
        self.on_submit()
        for seat in plan.released_seats:
            self._seats.pop(seat, None)
        for entry in plan.assigned:
            self._seats[entry.seat] = (entry.request_id, list(entry.token_ids), entry.prompt_len, entry.params)
            self._sums.pop(entry.seat, None)
            if entry.pooling is not None:
                self._sums[entry.seat] = (entry.pooling, np.zeros(HIDDEN))
        return FakeHandle(plan)

    def sample(self, handle: FakeHandle, masks: object) -> ModelRunnerOutput:
        del masks
        if self.step_seconds and self._cancelled.wait(self.step_seconds):
            self._cancelled.clear()
            self.num_cancelled += 1
            raise StepCancelledError("cancelled")
        plan = handle.plan
        for seat in plan.seats.tolist():
            if self.broken_request is not None and self._seats[seat][0].startswith(self.broken_request):
                raise RuntimeError("a broken executor")
        output = ModelRunnerOutput(token_ids=[], logprobs=[])
        for row, (seat, position) in enumerate(
            zip(plan.logit_seats.tolist(), plan.logit_positions.tolist(), strict=True)
        ):
            _, ids, prompt_len, params = self._seats[seat]
            token_id = self.next_token(ids[:position], prompt_len)
            if token_id < 0:
                output.row_errors[row] = NonFiniteError("the model's logits are not finite numbers")
            else:
                ids[position:] = [token_id]
            output.token_ids.append(token_id)
            output.logprobs.append(fake_logprobs(token_id, params.logprobs))
        for index, entry in enumerate(plan.prompt_logprob_rows):
            ids = self._seats[entry.seat][1]
            scored = ids[entry.first_position : entry.first_position + entry.count]
            output.prompt_logprobs[index] = [
                logprobs for token_id in scored if (logprobs := fake_logprobs(token_id, entry.num_logprobs)) is not None
            ]
        self._pool(plan, output)
        return output

    def _pool(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
        members = zip(
            plan.seats.tolist(), plan.num_computed_tokens.tolist(), plan.num_scheduled_tokens.tolist(), strict=True
        )
        for seat, start, count in members:
            if seat not in self._sums:
                continue
            pooling, total = self._sums[seat]
            _, ids, prompt_len, _ = self._seats[seat]
            for position in range(start, start + count):
                if pooling == "mean" or position == prompt_len - 1:
                    total += (ids[position], position, 1, 0)
            if start + count == prompt_len:
                output.sums.append(total)

    @property
    def progress(self) -> int:
        return 0

    def cancel(self) -> None:
        self._cancelled.set()

    def release_blocks(self, group: int, block_ids: list[int]) -> None:
        del group, block_ids

    def shutdown(self) -> None:
        self.is_shut_down = True


def fake_logprobs(token_id: int, count: int | None) -> TokenLogprobs | None:
    """The chosen token has rank 3, and the ids below it are the most probable."""
    if count is None:
        return None
    return TokenLogprobs([token_id, *range(count)], [-0.5, *(-0.1 * (i + 1) for i in range(count))], rank=3)


def echo_prompt(ids: list[int], prompt_len: int) -> int:
    """Say the prompt again, then end."""
    position = len(ids) - prompt_len
    return ids[position] if position < prompt_len else EOS


SPEC = AttentionGroupSpec("full", num_layers=1, num_kv_heads=1, head_dim=8, dtype="float32", block_size=16)


def make_parts(
    executor: FakeExecutor,
    *,
    max_model_len: int = 512,
    max_num_seqs: int = 32,
    max_num_batched_tokens: int = 128,
    tokenizer: ByteTokenizer | None = None,
    vocab_size: int = 300,
    seed: int = 0,
    policy: Literal["fcfs", "priority"] = "fcfs",
    pooling_type: PoolingType = "last",
    events: EventSink | None = None,
    num_saturated: Callable[[], int] = lambda: 0,
) -> EngineParts:
    """A real control plane over a fake data plane, and what is around it."""
    metrics = EngineMetrics(max_model_len, num_saturated)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        long_prefill_token_threshold=64,
        target_itl_ms=None,
        enable_chunked_prefill=True,
        policy=policy,
        enable_prefix_caching=True,
    )
    history, event_log = StepHistory(SPEC.block_size, 1), EventLog()
    sink = EventTee(metrics, history, event_log, *([events] if events is not None else ()))
    manager = KVCacheManager(
        [SPEC], executor.capacity(), enable_prefix_caching=True, give_back=executor.release_blocks, events=sink
    )
    scheduler = Scheduler(config, manager, events=sink)
    tokenizer = tokenizer or ByteTokenizer(vocab_size=vocab_size)
    return EngineParts(
        core=EngineCore(scheduler, executor),
        tokenizer=tokenizer,  # type: ignore[arg-type]
        metrics=metrics,
        make_observer=lambda: EngineObserver(scheduler, history, [SPEC], config),
        events=sink,
        event_log=event_log,
        default_sampling_params=SamplingParams(temperature=0.0, max_tokens=40),
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        embedding=EmbeddingConfig(pooling_type),
        eos_token_ids=(EOS,),
        model_config=ModelConfig("fake", "fake", max_model_len, vocab_size, HIDDEN),
        max_model_len=max_model_len,
        way_to_more_length="raise max_model_len",
        max_logprobs=20,
        grammars=GrammarCompiler(tokenizer, vocab_size=vocab_size, eos_token_ids={EOS}),  # type: ignore[arg-type]
        seed=seed,
        weight_formats={"Q4_1": 66_355_200, "Q8_0": 30_081_024},
        numeric_fingerprint="fake",
    )


def make_engine(
    next_token: Callable[[list[int], int], int] = echo_prompt,
    *,
    num_blocks: int = 64,
    step_seconds: float = 0.0,
    **options: Any,
) -> tuple[LLMEngine, FakeExecutor]:
    """An engine whose control plane is real and whose data plane is fake; options are those of `make_parts`."""
    executor = FakeExecutor(next_token, num_blocks, step_seconds)
    return LLMEngine(make_parts(executor, **options)), executor


def make_llm(**options: Any) -> tuple[LLM, FakeExecutor]:
    """An `LLM` over `make_engine`."""
    engine, executor = make_engine(**options)
    llm = LLM.__new__(LLM)
    llm._attach(engine)
    return llm, executor
