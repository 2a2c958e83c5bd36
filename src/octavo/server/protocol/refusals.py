"""Fields that are known and not served: which values of them ask for nothing, and the way out of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.server.protocol.bodies import ChatBody

if TYPE_CHECKING:
    from octavo.server.protocol.bodies import GenerationBody

_CONSTRAINED = "vLLM has replaced it; use structured_outputs with json, regex, choice or grammar"
_TOOLS = "tools belong to a conversation; use /v1/chat/completions"
_OLD_TOOLS = "OpenAI has replaced it; use tools and tool_choice"
_ADAPTERS = "adapters are not supported; merge the adapter into the model"

_WAYS_OUT: dict[str, str] = {
    "audio": "this server writes text only",
    "beam_width": "beam search is not supported; use n",
    "best_of": "use n and choose among the completions by their logprobs",
    "ec_transfer_params": "encoder caches are not shared between servers; leave it out",
    "extra_args": "there are no custom samplers that could read it; leave it out",
    "function_call": _OLD_TOOLS,
    "functions": _OLD_TOOLS,
    "guided_choice": _CONSTRAINED,
    "guided_decoding": _CONSTRAINED,
    "guided_grammar": _CONSTRAINED,
    "guided_json": _CONSTRAINED,
    "guided_regex": _CONSTRAINED,
    "kv_transfer_params": "KV caches are not shared between servers; leave it out",
    "logprob_token_ids": "the server does not score chosen ids, LLM.generate does; use logprobs",
    "lora_request": _ADAPTERS,
    "mm_processor_kwargs": "this server reads text only; leave it out",
    "modalities": 'this server writes text only; use ["text"]',
    "prompt_embeds": "prompts are text or token ids here, as there is no --enable-prompt-embeds",
    "prompt_logprob_start": "the server does not score chosen ids, LLM.generate does; use prompt_logprobs",
    "prompt_logprob_token_ids": "the server does not score chosen ids, LLM.generate does; use prompt_logprobs",
    "repetition_detection": "repetition detection is not supported yet; use repetition_penalty",
    "return_prompt_text": "use echo",
    "suffix": "filling in between two texts is not supported; write both into the prompt",
    "thinking_token_budget": "reasoning budgets are not supported yet; use max_tokens",
    "tool_choice": _TOOLS,
    "tools": _TOOLS,
    "truncate_prompt_tokens": "shorten the prompt; /tokenize counts its tokens",
    "use_beam_search": "beam search is not supported; use n",
    "vllm_xargs": "there are no custom samplers that could read it; leave it out",
}

_OF_CHATS = ("tools", "tool_choice")
"""Served there, and nowhere else."""

_HARMLESS: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
}
"""Values, beside null, false and what is empty, that ask for what happens anyway."""


def unserved_fields(*, of_chats: bool) -> list[str]:
    """Return the names of all such fields, of a chat or of anything else."""
    return [name for name in _WAYS_OUT if not (of_chats and name in _OF_CHATS)]


def refuse_unserved(body: GenerationBody) -> None:
    """Raise `RequestError` for the first field that asks for what cannot be served."""
    for name, way_out in _WAYS_OUT.items():
        if name in _OF_CHATS and isinstance(body, ChatBody):
            continue
        value = getattr(body, name)
        if value is None or value is False or value in ("", [], {}) or value in _HARMLESS.get(name, ()):
            continue
        if name == "best_of" and isinstance(value, int) and value == (body.n or 1):
            continue
        raise RequestError(f"{name} cannot be served: {way_out}.", parameter=name)
