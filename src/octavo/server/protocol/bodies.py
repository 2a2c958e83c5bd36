"""Bodies of requests as typed structs: OpenAI's fields, vLLM's extras, and the fields that are refused with a reason.

Types are checked by the decoder; ranges by `SamplingParams` and the input processor, and only told here, for
/openapi.json. Fields that are not listed are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType


def _range(**keywords: object) -> Meta:
    """Tell a range in the schema without checking it a second time."""
    return Meta(extra_json_schema=keywords)


Count = Annotated[int, _range(minimum=1)]
Natural = Annotated[int, _range(minimum=0)]
Int64 = Annotated[int, _range(minimum=-(2**63), maximum=2**63 - 1)]
TokenId = Natural
Temperature = Annotated[float, _range(minimum=0, maximum=2)]
TopP = Annotated[float, _range(exclusiveMinimum=0, maximum=1)]
TopK = Annotated[int, _range(minimum=-1, maximum=2**31 - 1)]
MinP = Annotated[float, _range(minimum=0, maximum=1)]
RepetitionPenalty = Annotated[float, _range(exclusiveMinimum=0)]
Penalty = Annotated[float, _range(minimum=-2, maximum=2)]
Bias = dict[Annotated[str, _range(pattern="^[0-9]{1,9}$")], float]
Text = Annotated[str, _range(minLength=1)]
CacheSalt = Annotated[str, _range(pattern="^[A-Za-z0-9_.=+~:-]{1,128}$")]
Prompt = str | list[int | str | list[int]]
"""Texts or token ids, one or several; no mixture of them."""
Messages = list[dict[str, Any]]


class StreamOptions(Struct, kw_only=True):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """What completions, chat completions and responses have in common."""

    model: str | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Int64 | None = None
    stop: Text | list[Text] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    min_tokens: Natural | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Bias | None = None
    structured_outputs: dict[str, Any] | None = None
    """vLLM's: the fields of `StructuredOutputsParams`."""
    cache_salt: CacheSalt | None = None
    priority: Int64 | None = None
    request_id: Text | None = None


class Unserved(SamplingFields, kw_only=True):
    """Fields of OpenAI or vLLM that are known and not served: null, or what `refusals` lets pass, is no request."""

    audio: Any = None
    best_of: Any = None
    beam_width: Any = None
    ec_transfer_params: Any = None
    extra_args: Any = None
    function_call: Any = None
    functions: Any = None
    guided_choice: Any = None
    guided_decoding: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    kv_transfer_params: Any = None
    logprob_token_ids: Any = None
    lora_request: Any = None
    mm_processor_kwargs: Any = None
    modalities: Any = None
    prompt_embeds: Any = None
    prompt_logprob_start: Any = None
    prompt_logprob_token_ids: Any = None
    repetition_detection: Any = None
    return_prompt_text: Any = None
    suffix: Any = None
    thinking_token_budget: Any = None
    tool_choice: Any = None
    tools: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    vllm_xargs: Any = None


class GenerationBody(Unserved, kw_only=True):
    """What else completions and chat completions have in common."""

    n: Count | None = None
    stream_options: StreamOptions | None = None
    include_stop_str_in_output: bool | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[Text] | None = None
    response_format: dict[str, Any] | None = None
    """OpenAI's way to ask for a form of the output: its type is text, json_object or json_schema."""
    prompt_logprobs: Annotated[int, _range(minimum=-1)] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """Of POST /v1/completions."""

    prompt: Prompt
    max_tokens: Count | UnsetType | None = UNSET
    """16 if it is left out; null is as many as the context has room for."""
    logprobs: Annotated[int, _range(minimum=-1)] | None = None
    add_special_tokens: bool | None = None


class ChatBody(GenerationBody, kw_only=True):
    """Of POST /v1/chat/completions."""

    messages: Messages
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call: see `tools`."""
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    """Whether an answer may have several calls; it may unless this is false."""
    reasoning_effort: str | None = None
    """How long to think, for templates that know it; "none" is no thought."""
    include_reasoning: bool | None = None
    """Whether to send the thought before the answer; it is sent unless this is false."""
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    """The older name of max_completion_tokens, which goes first."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, _range(minimum=-1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(Struct, kw_only=True):
    """Of POST /tokenize: a prompt, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeBody(Struct, kw_only=True):
    """Of POST /detokenize."""

    tokens: list[TokenId]
    model: str | None = None


class EmbeddingBody(Struct, kw_only=True):
    """Of POST /v1/embeddings."""

    input: Prompt
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    use_activation: bool | None = None
    """Whether to scale embeddings to length 1; null leaves it to the model, and most do."""
    add_special_tokens: bool | None = None
    cache_salt: CacheSalt | None = None
    priority: Int64 | None = None
    request_id: Text | None = None
    messages: Any = None
    normalize: Any = None
    truncate_prompt_tokens: Any = None
