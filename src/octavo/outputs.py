"""What the engine returns: `RequestOutput`, its completions, their logprobs and timings. vLLM's names and order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Pooled = TypeVar("Pooled")


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None
    """1-based position in the vocabulary ordered by probability."""
    decoded_token: str | None = None


LEAST_LOGPROB = -9999.0
"""Stands for minus infinity and for what is no number where answers are JSON, which has neither."""


def finite_logprob(logprob: float) -> float:
    """Return a logprob as JSON can have it."""
    return logprob if logprob >= LEAST_LOGPROB else LEAST_LOGPROB


PromptLogprobs = list[dict[int, Logprob] | None]
"""One entry per prompt token; the first is None, because nothing predicts it."""
SampleLogprobs = list[dict[int, Logprob]]
"""One entry per generated token: the chosen token first, then the most probable ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One of the `n` completions of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    """Sum of the chosen tokens' logprobs; None unless logprobs were asked for."""
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    """None while running; then "stop", "length", "abort" or "error"."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it, also where the model's generation config names the latter; None
    for the tokenizer's own end-of-text token."""

    def finished(self) -> bool:
        """Whether this completion has ended."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class OutputError:
    """Why a request could not be served."""

    code: str
    """A stable name: the `code` of the exception that `on_error="raise"` would raise."""
    message: str


@dataclass(slots=True)
class RequestStateStats:
    """Timings and facts of one request.

    Units: `arrival_time` is wall-clock seconds since the epoch; the `_ts` fields are seconds of one monotonic clock,
    whose differences are meaningful; 0.0 where it has not happened.
    """

    num_generation_tokens: int = 0
    """Of all completions."""
    num_preemptions: int = 0
    """How often the request lost its blocks and was recomputed; of several completions, that with the most."""
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    """Start of the step that computed the request's first token rows."""
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    """Seconds from arrival to the first token."""
    is_corrupted: bool = False
    """Whether the model produced numbers that are not finite: logits, or hidden states of an embedding."""
    seed: int | None = None
    """The seed that was used: repeating the request with it repeats the answer."""
    numeric_fingerprint: str | None = None
    """Hash of everything that the answer's numbers depend on besides the request, its prompt as token ids."""


@dataclass(slots=True)
class RequestOutput:
    """The state of one request: partial while it runs, complete when `finished`."""

    request_id: str
    prompt: str | None
    """None if the prompt was given as token ids."""
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None = None
    lora_request: None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    num_cached_tokens: int | None = None
    """Prompt tokens whose keys and values came from the prefix cache."""
    error: OutputError | None = field(default=None, kw_only=True)
    """Set where the request, or its prompt, could not be served."""
    prompt_token_id_logprobs: NDArray[np.float32] | None = field(default=None, kw_only=True)
    """Of `SamplingParams.prompt_logprob_token_ids`, in the same shape; -inf where a row is padded."""
    embedding: list[float] | None = field(default=None, kw_only=True)
    """Of a request with `PoolingParams`, whose one completion is empty: `PoolingRequestOutput` is made of it."""


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Pooled]):
    """What was made of the hidden states of a prompt."""

    request_id: str
    outputs: Pooled
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
    error: OutputError | None = field(default=None, kw_only=True)
    """Set where the prompt could not be served; `outputs` is then empty."""


@dataclass(slots=True)
class EmbeddingOutput:
    """An embedding."""

    embedding: list[float]
    """Of as many numbers as the model's hidden states, or as the `dimensions` that were asked for."""

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(slots=True)
class ScoringOutput:
    """How alike two texts are."""

    score: float
    """The cosine of the angle between their embeddings."""


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The embedding of one prompt."""

    __slots__ = ()


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The score of one pair; its token ids are those of both, one after the other."""

    __slots__ = ()


@dataclass(slots=True)
class BeamSearchSequence:
    """One of the best beams of a prompt."""

    tokens: list[int]
    """Prompt included."""
    logprobs: list[dict[int, Logprob]]
    """The candidates of each generated token."""
    cum_logprob: float = 0.0
    text: str | None = None
    """Prompt included."""
    finish_reason: str | None = None
    """stop for a beam that ended by itself, length for one that max_tokens cut."""
    stop_reason: int | str | None = None
    lora_request: None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]
