"""Bodies of requests as typed structs: OpenAI's fields, vLLM's extras, and the fields that are refused with a reason.

Types are checked by the decoder; ranges by `SamplingParams` and the input processor, and only told here, for
/openapi.json. Fields that are not listed are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType


def _range(**keywords: object) -> Meta:
    """Tell a range in the schema without checking it a second time."""
    return Meta(extra_json_schema=keywords)


Count = Annotated[int, _range(minimum=1)]
TokenId = Annotated[int, _range(minimum=0)]
Penalty = Annotated[float, _range(minimum=-2, maximum=2)]
Bias = dict[Annotated[str, _range(pattern="^[0-9]{1,9}$")], float]
Text = Annotated[str, _range(minLength=1)]
Prompt = str | list[int | str | list[int]]
"""Texts or token ids, one or several; no mixture of them."""
Messages = list[dict[str, Any]]


class StreamOptions(Struct, kw_only=True):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Unserved(Struct, kw_only=True):
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
    """What completions and chat completions have in common."""

    model: str | None = None
    n: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, _range(minimum=0, maximum=2)] | None = None
    top_p: Annotated[float, _range(exclusiveMinimum=0, maximum=1)] | None = None
    top_k: Annotated[int, _range(minimum=-1, maximum=2**31 - 1)] | None = None
    min_p: Annotated[float, _range(minimum=0, maximum=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, _range(exclusiveMinimum=0)] | None = None
    seed: Annotated[int, _range(minimum=-(2**63), maximum=2**63 - 1)] | None = None
    stop: Text | list[Text] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, _range(minimum=0)] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: Bias | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[Text] | None = None
    response_format: dict[str, Any] | None = None
    """OpenAI's way to ask for a form of the output: its type is text, json_object or json_schema."""
    structured_outputs: dict[str, Any] | None = None
    """vLLM's: the fields of `StructuredOutputsParams`."""
    prompt_logprobs: Annotated[int, _range(minimum=-1)] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, _range(pattern="^[A-Za-z0-9_.=+~:-]{1,128}$")] | None = None
    priority: Annotated[int, _range(minimum=-(2**63), maximum=2**63 - 1)] | None = None
    request_id: Annotated[str, _range(minLength=1)] | None = None
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
    tools: Any = None


class DetokenizeBody(Struct, kw_only=True):
    """Of POST /detokenize."""

    tokens: list[TokenId]
    model: str | None = None


class EmbeddingBody(Struct, kw_only=True):
    """Of POST /v1/embeddings."""

    input: Prompt
    model: str | None = None
    encoding_format: str | None = None
    dimensions: Count | None = None
