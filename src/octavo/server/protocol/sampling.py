"""A body's fields to `SamplingParams`; what the body leaves open comes from the model's generation config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from octavo.errors import RequestError
from octavo.sampling_params import GREEDY_BELOW, MIN_TEMPERATURE, RequestOutputKind, SamplingParams
from octavo.server.protocol.bodies import ChatBody, CompletionBody
from octavo.server.protocol.limits import check_limit
from octavo.server.protocol.refusals import refuse_unserved
from octavo.server.protocol.renaming import in_other_words
from octavo.server.protocol.structured import structured_outputs

if TYPE_CHECKING:
    from octavo.server.protocol.bodies import GenerationBody
    from octavo.server.protocol.limits import RequestLimits

_PASSED_ON = (
    "n", "presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
    "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens", "logit_bias",
    "allowed_token_ids", "bad_words",
)  # fmt: skip
_RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a model's authors may have a say in."""
_NO_MAX_TOKENS = SamplingParams().max_tokens
"""What a completion without a length gets, and what a generation config without one comes to."""


def completion_params(body: CompletionBody, defaults: SamplingParams, limits: RequestLimits) -> SamplingParams:
    """Return the parameters of a completion request.

    Args:
        defaults: of the model.

    Raises: `RequestError` naming the field.
    """
    _check_common(body, limits)
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        prompt_logprobs = body.logprobs if prompt_logprobs is None else max(prompt_logprobs, body.logprobs)
    max_tokens = _NO_MAX_TOKENS if body.max_tokens is UNSET else _length(body.max_tokens, defaults)
    max_tokens = 1 if scores_only(body) else max_tokens
    return _params(body, defaults, max_tokens=max_tokens, logprobs=body.logprobs, prompt_logprobs=prompt_logprobs)


def chat_params(body: ChatBody, defaults: SamplingParams, limits: RequestLimits) -> SamplingParams:
    """Return the parameters of a chat request: without a length of its own, it may fill the context.

    Raises: `RequestError` naming the field.
    """
    _check_common(body, limits)
    max_tokens = _length(asked_max_tokens(body), defaults)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.", parameter="top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _params(body, defaults, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=body.prompt_logprobs)


def _length(asked: int | None, defaults: SamplingParams) -> int | None:
    """Return the length of a request that may fill the context if it does not say, or says null."""
    if asked is None and defaults.max_tokens != _NO_MAX_TOKENS:
        return defaults.max_tokens
    return asked


def asked_max_tokens(body: GenerationBody) -> int | None:
    """Return the length that a request itself asks for; None if it leaves that to the server."""
    if isinstance(body, ChatBody):
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    asked = body.max_tokens if isinstance(body, CompletionBody) else None
    return None if asked is UNSET else asked


def sent_names(body: GenerationBody) -> dict[str, str]:
    """Return what a body calls those of `SamplingParams`' fields that it has sent under another name."""
    names: dict[str, str] = {}
    if isinstance(body, ChatBody):
        names["logprobs"] = "top_logprobs"
        if body.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
    elif body.echo and body.prompt_logprobs is None:
        names["prompt_logprobs"] = "logprobs"
    return names


def scores_only(body: CompletionBody) -> bool:
    """Whether a request wants its prompt back, and nothing generated: one token is, and thrown away."""
    return body.max_tokens == 0 and bool(body.echo)


def _params(
    body: GenerationBody,
    defaults: SamplingParams,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    values: dict[str, Any] = {name: getattr(body, name) for name in _PASSED_ON}
    for name in _RECOMMENDED:
        value = getattr(body, name)
        values[name] = getattr(defaults, name) if value is None else value
    if GREEDY_BELOW <= values["temperature"] < MIN_TEMPERATURE:
        values["temperature"] = MIN_TEMPERATURE  # as SamplingParams would, with a warning that nobody here reads
    form = structured_outputs(body)
    with in_other_words(sent_names(body)):
        return SamplingParams.from_optional(
            **values,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=form,
            output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
        )


def _check_common(body: GenerationBody, limits: RequestLimits) -> None:
    refuse_unserved(body)
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true.", parameter="stream_options")
    check_limit("n", body.n or 1, limits.max_completions, "completions")
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    check_limit("stop", len(stops), limits.max_stop_strings, "strings")
    check_limit("stop", sum(map(len, stops)), limits.max_stop_chars, "characters together")
    check_limit("stop_token_ids", len(body.stop_token_ids or ()), limits.max_token_id_list, "ids")
    check_limit("logit_bias", len(body.logit_bias or ()), limits.max_token_id_list, "entries")
    check_limit("bad_words", len(body.bad_words or ()), limits.max_bad_words, "words")
    check_limit("request_id", len(body.request_id or ""), limits.max_id_chars, "characters")
