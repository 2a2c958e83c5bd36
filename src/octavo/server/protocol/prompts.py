"""What the engine is to read: the prompts of a completion, the conversation of a chat, with their cache salt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.frontend.call_arguments import template_variables
from octavo.server.protocol.bodies import ChatBody
from octavo.server.protocol.limits import check_limit, check_parts
from octavo.server.protocol.tools import checked_tools

if TYPE_CHECKING:
    from octavo.frontend.input_processor import EngineInput, Prompt
    from octavo.server.protocol.bodies import CompletionBody, DetokenizeBody, TokenizeBody
    from octavo.server.protocol.limits import RequestLimits
    from octavo.tokenizer.tokenizer import Tokenizer

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def completion_prompts(body: CompletionBody, limits: RequestLimits) -> list[Prompt]:
    """Return the prompts of a completion request: texts or lists of ids, in a dict where they have a salt.

    Raises: `RequestError` for a list that is empty, mixed, or too long.
    """
    prompts = as_prompt_list(body.prompt)
    if len(prompts) > limits.max_prompts:
        rule = f"exceeds the maximum of {limits.max_prompts}; send several requests"
        raise RequestError(f"prompt list length {len(prompts)} {rule}.", parameter="prompt")
    check_limit("n", (body.n or 1) * len(prompts), limits.max_completions, "completions of all prompts together")
    return [salted(prompt, body.cache_salt) for prompt in prompts]


def checked_inputs(prepared: Sequence[EngineInput | RequestError], field: str = "prompt") -> list[EngineInput]:
    """Return what `AsyncLLM.prepare` or `LLMEngine.prepare` made of a body's prompts.

    Args:
        field: of the body, in which they came.

    Raises: `RequestError` for the first that cannot be served; it is named where there are several.
    """
    inputs: list[EngineInput] = []
    for index, entry in enumerate(prepared):
        if isinstance(entry, RequestError):
            message = str(entry) if len(prepared) == 1 else f"{field} {index}: {entry}"
            parameter = field if entry.parameter == "prompt" else entry.parameter
            raise RequestError(message, parameter=parameter, value=entry.value)
        inputs.append(entry)
    return inputs


def salted(prompt: str | list[int], cache_salt: str | None) -> Prompt:
    """Return a prompt whose cached blocks are shared only by prompts of the same salt."""
    if cache_salt is None:
        return prompt
    name = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
    return {name: prompt, "cache_salt": cache_salt}


def template_arguments(
    body: ChatBody | TokenizeBody, limits: RequestLimits, tools: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the arguments of `Tokenizer.apply_chat_template` for a conversation, `tokenize=False` among them.

    Args:
        tools: those that the model is to see.

    Raises: `RequestError` for messages that no template should see, or a template of the request's own.
    """
    _check_messages(body.messages or [], limits)
    if body.chat_template is not None and not limits.allow_request_chat_template:
        raise RequestError(
            "chat_template is refused: a template is a program. Leave it out; who runs the server can allow it.",
            parameter="chat_template",
        )
    continues = bool(body.continue_final_message)
    opens = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    documents = body.documents if isinstance(body, ChatBody) else None
    return {
        **_effort_variables(body.reasoning_effort if isinstance(body, ChatBody) else None),
        **template_variables(body.chat_template_kwargs),
        **({} if documents is None else {"documents": documents}),
        "conversation": [_as_templates_know(message) for message in body.messages or []],
        "tools": tools,
        "chat_template": body.chat_template,
        "add_generation_prompt": opens,
        "continue_final_message": continues,
        "tokenize": False,
    }


def _as_templates_know(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message by a developer as one by the system: OpenAI's newer word for it, which few templates read."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _effort_variables(effort: str | None) -> dict[str, Any]:
    """Return what templates know a wish for longer or shorter thoughts as."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}


def tokenize_arguments(body: TokenizeBody, limits: RequestLimits) -> dict[str, Any] | None:
    """Return the same for /tokenize; None if it has a text.

    Raises: `RequestError`, also for neither or both.
    """
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages.", parameter="prompt")
    if body.messages is None:
        return None
    return template_arguments(body, limits, checked_tools(body.tools, limits) or None)


def _check_messages(messages: Sequence[Mapping[str, Any]], limits: RequestLimits) -> None:
    if not messages:
        raise RequestError("messages must be a non-empty list.", parameter="messages")
    check_limit("messages", len(messages), limits.max_messages, "messages")
    parts = (message.get(key) for message in messages for key in ("content", "tool_calls"))
    check_parts("messages", parts, limits.max_messages)
    for index, message in enumerate(messages):
        role = message.get("role")
        if not (isinstance(role, str) and role in _ROLES):
            rule = f"must be one of {', '.join(sorted(_ROLES))}"
            raise RequestError(f"messages[{index}].role {rule}.", parameter="messages")


def rendering_arguments(tokenizer: Tokenizer, conversation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `chat_template.render_chat` for a conversation.

    Args:
        conversation: what `template_arguments` returns.

    Raises: `RequestError` for a model without a chat template.
    """
    own = {name: value for name, value in conversation.items() if name != "tokenize"}
    try:
        return tokenizer.render_arguments(**own)
    except RequestError:
        raise RequestError(
            "messages cannot be served: this model has no chat template. Send a prompt to /v1/completions, or start "
            "octavo serve with a --chat-template.",
            parameter="messages",
        ) from None


def checked_token_ids(body: DetokenizeBody, vocab_size: int) -> list[int]:
    """Return the ids to turn into text. Raises: `RequestError` for one that the model does not have."""
    for position, token_id in enumerate(body.tokens):
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"tokens[{position}] is out of vocabulary: ids are in [0, {vocab_size - 1}].", parameter="tokens"
            )
    return body.tokens


def as_prompt_list(prompt: str | list[Any], name: str = "prompt") -> list[Any]:
    """Return one prompt, or several, as a list. Raises: `RequestError` for a list that is empty or mixed."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError(f"{name} must be non-empty.", parameter=name)
    kinds = {type(entry) for entry in prompt}
    if len(kinds) > 1:
        raise RequestError(f"{name} must hold only texts, only token ids, or only lists of ids.", parameter=name)
    return [prompt] if int in kinds else prompt
