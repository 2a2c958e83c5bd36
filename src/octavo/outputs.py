"""What the engine returns: `RequestOutput`, its completions, their logprobs and timings. vLLM's names and order."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None
    """1-based position in the vocabulary ordered by probability."""
    decoded_token: str | None = None


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
    """The stop string or stop token id that ended it; None for the model's own end-of-text token."""

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
    """Whether the model produced logits that are not numbers."""
    seed: int | None = None
    """The seed that was used: repeating the request with it repeats the answer."""
    numeric_fingerprint: str | None = None
    """Hash of everything that the answer's bits depend on besides the request."""


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
