"""Bodies of answers as typed structs: what /openapi.json promises, and what is encoded."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

PromptLogprobEntries = list[dict[str, dict[str, Any]] | None]
"""One entry per prompt token, null for the first: token id to `logprob`, `rank`, `decoded_token`."""


class ErrorInfo(Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorResponse(Struct):
    """The body of every answer but 2xx."""

    error: ErrorInfo


class PromptTokensDetails(Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(Struct):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET


class EmbeddingEntry(Struct):
    """The embedding of one input."""

    index: int
    embedding: list[float] | str
    """Numbers, or base64 of little-endian float32."""
    object: Literal["embedding"] = "embedding"


class EmbeddingResponse(Struct, kw_only=True):
    """Of POST /v1/embeddings."""

    id: str
    created: int
    model: str
    data: list[EmbeddingEntry]
    usage: Usage
    object: Literal["list"] = "list"


class CompletionLogprobs(Struct):
    """The older form of logprobs: parallel lists."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Struct, kw_only=True):
    """One completion, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobEntries | UnsetType = UNSET


class CompletionResponse(Struct, kw_only=True):
    """Of /v1/completions, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET


class TopLogprob(Struct):
    """A token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    """A token that was chosen."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """The newer form of logprobs."""

    content: list[TokenLogprob]


class CalledFunction(Struct, kw_only=True):
    """Which function is called, and with what; in a stream, what is new of that."""

    name: str | UnsetType = UNSET
    arguments: str = ""
    """JSON text."""


class ToolCall(Struct, kw_only=True):
    """A call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Struct, kw_only=True):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    """The thought before the answer."""
    reasoning_content: str | UnsetType = UNSET
    """The same by its older name."""
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(Struct, kw_only=True):
    """Of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobEntries | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ToolCallDelta(Struct, kw_only=True):
    """What is new of a call: its first piece has the id and the name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: CalledFunction


class ChatDelta(Struct, kw_only=True):
    """What is new of an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """What is new of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobEntries | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelCard(Struct, kw_only=True):
    """A name that requests may use."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(Struct, kw_only=True):
    """Of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(Struct):
    """Of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(Struct):
    """Of /detokenize."""

    prompt: str


class VersionResponse(Struct):
    """Of /version."""

    version: str


class LoadResponse(Struct):
    """Of /load: generation requests that are being served."""

    server_load: int
