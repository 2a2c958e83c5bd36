"""One request read whole: what to render, what to generate, with which parameters, and who writes the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.server.parsers.formats import OutputFormat
from octavo.server.parsers.plan import PLAIN, MakeParser, ReadingPlan
from octavo.server.protocol.answers import Answer, AnswerHead
from octavo.server.protocol.bodies import ChatBody, CompletionBody, DetokenizeBody, GenerationBody, TokenizeBody
from octavo.server.protocol.chat import ChatAnswer
from octavo.server.protocol.completions import CompletionAnswer
from octavo.server.protocol.decoding import read_body
from octavo.server.protocol.errors import model_not_found
from octavo.server.protocol.prompts import (
    checked_inputs,
    completion_prompts,
    salted,
    template_arguments,
    tokenize_arguments,
)
from octavo.server.protocol.reading import plan_reading, prepared_params, wanted_form
from octavo.server.protocol.renaming import in_other_words
from octavo.server.protocol.sampling import asked_max_tokens, chat_params, completion_params, sent_names
from octavo.server.protocol.tools import read_tools

if TYPE_CHECKING:
    from octavo.frontend.input_processor import EngineInput, Prompt
    from octavo.sampling_params import SamplingParams
    from octavo.server.protocol.limits import RequestLimits
    from octavo.server.protocol.logprobs import TokenTexts

_OF_FORMAT = {"structured_outputs": "response_format", "structured_outputs.json ": "response_format.json_schema "}
"""What errors about a form that came as OpenAI's `response_format` are to name."""

MakeAnswer = Callable[[str, int, MakeParser], Answer]
"""Takes the request's id, without a prefix, the seconds since the epoch, and what makes each completion's parser."""


@dataclass(frozen=True, slots=True)
class ProtocolContext:
    """What the meaning of a body depends on besides the body."""

    model_names: tuple[str, ...]
    """Served names; answers have the first."""
    default_sampling_params: SamplingParams
    limits: RequestLimits
    texts: TokenTexts
    """The model's tokenizer."""
    output_format: OutputFormat = PLAIN.model
    """In which form the model writes tool calls and thoughts."""
    allows_auto_calls: bool = True
    """Whether models may call tools where a request leaves the choice to them."""
    fingerprint: str | None = None
    """See `AnswerHead`."""
    forces_usage: bool = False
    """See `AnswerHead`."""
    tells_cached_tokens: bool = True
    """See `AnswerHead`."""

    def served_name(self, model: str | None) -> str:
        """Return the name to answer under. Raises: `ApiError` with 404 for a model that is not served."""
        if model and model not in self.model_names:
            raise model_not_found(model, self.model_names[0])
        return self.model_names[0]


@dataclass(frozen=True, slots=True)
class Call:
    """A generation request."""

    params: SamplingParams
    """For all prompts, with `output_kind` set."""
    add_special_tokens: bool
    """To the text of a prompt."""
    prompts: list[Prompt]
    """Of a chat: none until its conversation is rendered, see `with_rendered`."""
    conversation: Mapping[str, Any] | None
    """Of a chat: the arguments of `Tokenizer.apply_chat_template`."""
    priority: int
    stream: bool
    request_id: str | None
    """The client's own."""
    asked_max_tokens: int | None
    """What the request itself says; None if it leaves its length to the server, which then makes it fit."""
    _cache_salt: str | None
    _make_answer: MakeAnswer
    _plan: ReadingPlan
    """How the output is read."""
    _names: Mapping[str, str]
    """Of the engine's parameters, what the body calls them."""
    _rendered: str = ""
    """Of a chat: the text of its prompt."""

    def with_rendered(self, text: str) -> Call:
        """Return the call of a chat whose conversation was rendered to `text`, with all that depends on it."""
        return replace(
            self,
            params=prepared_params(self.params, self._plan, text),
            prompts=[salted(text, self._cache_salt)],
            _rendered=text,
        )

    def checked_inputs(self, prepared: Sequence[EngineInput | RequestError], max_model_len: int) -> list[EngineInput]:
        """Return what the engine has prepared, if all of it can be served.

        Raises: `RequestError` in the words of the body, also where the length that it asks for does not fit.
        """
        with in_other_words(self._names):
            inputs = checked_inputs(prepared)
            for entry in inputs:
                self._check_room(len(entry.prompt_token_ids), max_model_len)
        return inputs

    def _check_room(self, num_prompt_tokens: int, max_model_len: int) -> None:
        """Raise `RequestError` if the length that the request asks for does not fit behind a prompt."""
        asked = self.asked_max_tokens or 0
        if num_prompt_tokens + asked > max_model_len:
            limit = f"this model's maximum context length is {max_model_len} tokens, prompt and output together"
            room = max_model_len - num_prompt_tokens
            way_out = (
                f"; at most {room} {'is' if room == 1 else 'are'} left for the output"
                if room > 0
                else "; shorten the prompt"
            )
            length = f"{num_prompt_tokens} token{'' if num_prompt_tokens == 1 else 's'}"
            raise RequestError(
                f"max_tokens is {asked} and the prompt has {length}, but {limit}{way_out}.",
                parameter="max_tokens",
            )

    def answer(self, request_id: str, created: int) -> Answer:
        """Return what writes the answer.

        Args:
            request_id: without a prefix.
            created: seconds since the epoch.
        """
        parsers = self._plan.make_parsers(self._rendered, f"{request_id}:{created}")
        return self._make_answer(request_id, created, parsers)


def parse_completion(raw: bytes, context: ProtocolContext) -> Call:
    """Read the body of /v1/completions. Raises: `RequestError`, `ApiError`."""
    body = read_body(raw, CompletionBody)
    name = context.served_name(body.model)
    params = completion_params(body, context.default_sampling_params, context.limits)
    prompts = completion_prompts(body, context.limits)

    def make_answer(request_id: str, created: int, make_parser: MakeParser) -> Answer:
        del make_parser
        return CompletionAnswer(body, _head(f"cmpl-{request_id}", created, name, context), context.texts)

    return _call(body, params, make_answer, prompts=prompts, adds_special=body.add_special_tokens is not False)


def parse_chat(raw: bytes, context: ProtocolContext) -> Call:
    """Read the body of /v1/chat/completions. Raises: `RequestError`, `ApiError`."""
    body = read_body(raw, ChatBody)
    name = context.served_name(body.model)

    def make_answer(request_id: str, created: int, make_parser: MakeParser) -> Answer:
        head = _head(f"chatcmpl-{request_id}", created, name, context)
        return ChatAnswer(body, head, context.texts, make_parser)

    return chat_call(body, context, make_answer)


def chat_call(body: ChatBody, context: ProtocolContext, make_answer: MakeAnswer) -> Call:
    """Return what a chat asks for, whichever API it came by. Raises: `RequestError`."""
    model = context.output_format
    tools = read_tools(body, context.limits)
    if tools.choice == "auto" and not context.allows_auto_calls:
        raise RequestError(
            'tools need tool_choice here: who runs the server has switched "auto" off.', parameter="tools"
        )
    params = chat_params(body, context.default_sampling_params, context.limits)
    asked = params.structured_outputs
    params.structured_outputs = wanted_form(body, tools, model, asked if not isinstance(asked, dict) else None)
    return _call(
        body,
        params,
        make_answer,
        plan=plan_reading(body, tools, model),
        conversation=template_arguments(body, context.limits, tools.shown),
        adds_special=bool(body.add_special_tokens),
    )


@dataclass(frozen=True, slots=True)
class TokenizeCall:
    """A text to count: given, or to be rendered from a conversation."""

    text: str | None
    conversation: Mapping[str, Any] | None
    add_special_tokens: bool
    return_token_strs: bool


def parse_tokenize(raw: bytes, context: ProtocolContext) -> TokenizeCall:
    """Read the body of /tokenize. Raises: `RequestError`, `ApiError`."""
    body = read_body(raw, TokenizeBody)
    context.served_name(body.model)
    conversation = tokenize_arguments(body, context.limits)
    default = conversation is None
    special = default if body.add_special_tokens is None else body.add_special_tokens
    return TokenizeCall(body.prompt, conversation, special, bool(body.return_token_strs))


def parse_detokenize(raw: bytes, context: ProtocolContext) -> DetokenizeBody:
    """Read the body of /detokenize; ids are not checked. Raises: `RequestError`, `ApiError`."""
    body = read_body(raw, DetokenizeBody)
    context.served_name(body.model)
    return body


def _head(answer_id: str, created: int, name: str, context: ProtocolContext) -> AnswerHead:
    return AnswerHead(answer_id, created, name, context.fingerprint, context.forces_usage, context.tells_cached_tokens)


def _call(
    body: GenerationBody,
    params: SamplingParams,
    make_answer: MakeAnswer,
    *,
    plan: ReadingPlan = PLAIN,
    prompts: list[Prompt] | None = None,
    conversation: Mapping[str, Any] | None = None,
    adds_special: bool,
) -> Call:
    return Call(
        params=params,
        add_special_tokens=adds_special,
        prompts=prompts or [],
        conversation=conversation,
        priority=body.priority or 0,
        stream=bool(body.stream),
        request_id=body.request_id,
        asked_max_tokens=asked_max_tokens(body),
        _cache_salt=body.cache_salt,
        _make_answer=make_answer,
        _plan=plan,
        _names={**sent_names(body), **(_OF_FORMAT if body.response_format is not None else {})},
    )
