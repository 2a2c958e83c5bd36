"""Prompts and parameters to requests: tokenise, and check everything that a user gives before the engine sees it.

A bad prompt yields its own `RequestError`; the others of the batch are not touched.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypedDict

from octavo.errors import QueueFullError, RequestError
from octavo.pooling_params import PoolingParams
from octavo.sampling_params import RequestOutputKind, SamplingParams
from octavo.structured_outputs import StructuredOutputsParams
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.frontend.embedding import EmbeddingConfig
    from octavo.grammar.compiler import GrammarCompiler
    from octavo.grammar.matcher import CompiledGrammar
    from octavo.tokenizer.tokenizer import Tokenizer


class _Salted(TypedDict, total=False):
    cache_salt: str
    """Only prompts with the same salt share cached prefixes."""


class TextPrompt(_Salted):
    """vLLM's name for a dict with a text; a plain one does as well."""

    prompt: str


class TokensPrompt(_Salted):
    """The same with token ids."""

    prompt_token_ids: list[int]


Prompt = str | list[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
"""Text, token ids, or a dict with `prompt` or `prompt_token_ids`, and perhaps `cache_salt`."""
PromptType = Prompt
"""vLLM's name for it."""

_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})
_SHORT_TOKEN_CHARS = 4
"""A text of fewer characters per token that fits is simply tokenised."""
_SHRINK = 4
"""A tokenizer may normalise that many characters to one, at most."""
_SALT = re.compile(r"[A-Za-z0-9_.=+~:-]{1,128}")


@dataclass(slots=True)
class EngineInput:
    """One checked prompt."""

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    """The engine's copy, shared by the prompts that came with the same object."""
    cache_salt: str | None = None
    max_tokens: int = 0
    """What `params.max_tokens` comes to for this prompt, once it is known to fit."""
    grammar: CompiledGrammar | None = None
    """That of `params.structured_outputs`."""
    pooling: PoolingParams | None = None
    """The prompt is embedded, with nothing left open in these; `params` then say nothing about it."""


@dataclass(slots=True)
class _Parsed:
    text: str | None = None
    token_ids: list[int] | None = None
    cache_salt: str | None = None
    error: RequestError | None = None


@dataclass(slots=True)
class _CheckedParams:
    """See the fields of `EngineInput`."""

    params: SamplingParams
    grammar: CompiledGrammar | None = None
    pooling: PoolingParams | None = None


class InputProcessor:
    """Checks prompts and parameters against one model.

    Args:
        vocab_size: width of the logits, which may be more than the tokenizer's number of tokens.
        eos_token_ids: every id that ends a generation, the tokenizer's own first.
        way_to_more_length: what allows longer prompts than `max_model_len`: see length_advice.py.
        max_logprobs: most logprobs a position may report; -1 for no limit.
        grammars: compiles what `structured_outputs` asks for.
        hidden_size: of the longest embedding.
        embedding: what embeddings of the model are.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        max_model_len: int,
        way_to_more_length: str,
        max_logprobs: int,
        grammars: GrammarCompiler,
        hidden_size: int,
        embedding: EmbeddingConfig,
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_token_id = next(iter(eos_token_ids), None)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._way_to_more_length = way_to_more_length
        self._grammars = grammars
        self._hidden_size = hidden_size
        self._embedding = embedding
        self._max_logprobs = vocab_size if max_logprobs == -1 else max_logprobs

    def process(
        self,
        prompts: Sequence[Prompt | RequestError],
        params: Sequence[SamplingParams | PoolingParams],
        *,
        add_special_tokens: bool = True,
        output_kind: RequestOutputKind | None = None,
        raise_queue_full: bool = False,
    ) -> list[EngineInput | RequestError]:
        """Return for each prompt its input, or why it cannot be served. Texts are tokenised in one batch.

        Args:
            prompts: an error in the place of a prompt is passed on.
            output_kind: replaces that of the parameters, in the engine's copy.
            raise_queue_full: what to do about a grammar that those before it leave no time to be compiled: raise
                `QueueFullError`, or refuse its prompts alone.
        """
        parsed = [self._parse(prompt) for prompt in prompts]
        texts = [entry for entry in parsed if entry.error is None and entry.token_ids is None]
        encoded = self._tokenizer.encode_batch(
            [entry.text or "" for entry in texts], add_special_tokens=add_special_tokens
        )
        for entry, token_ids in zip(texts, encoded, strict=True):
            entry.token_ids = token_ids
        checked: dict[int, _CheckedParams | RequestError] = {}
        results: list[EngineInput | RequestError] = []
        for entry, own in zip(parsed, params, strict=True):
            if id(own) not in checked:
                checked[id(own)] = self._checked_params(own, output_kind, raise_queue_full)
            results.append(self._finish(entry, checked[id(own)]))
        return results

    def _parse(self, prompt: object) -> _Parsed:
        if isinstance(prompt, RequestError):
            return _Parsed(error=prompt)
        try:
            if isinstance(prompt, str):
                return _Parsed(text=self._checked_text(prompt))
            if isinstance(prompt, Mapping):
                return self._parse_dict(prompt)
            if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
                return _Parsed(token_ids=self._checked_ids(prompt))
        except RequestError as error:
            return _Parsed(error=error)
        rule = "a prompt must be text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`"
        return _Parsed(error=_error("prompt", prompt, f"{rule}, got {type(prompt).__name__}"))

    def _parse_dict(self, prompt: Mapping[str, Any]) -> _Parsed:
        unknown = sorted(map(str, prompt.keys() - _PROMPT_KEYS))
        if unknown:
            hint = "; messages of a conversation are for chat()" if "role" in unknown else ""
            raise _error("prompt", unknown, f"prompt has keys that are not supported: {', '.join(unknown)}{hint}")
        salt = prompt.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and _SALT.fullmatch(salt)):
            rule = "cache_salt must be 1 to 128 letters, digits or any of _.=+~:-"
            raise _error("cache_salt", salt, f"{rule}, got {reprlib.repr(salt)}")
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if token_ids is not None:
            if not isinstance(token_ids, Sequence) or isinstance(token_ids, (str, bytes)):
                raise _error("prompt_token_ids", token_ids, "prompt_token_ids must be a list of token ids")
            return _Parsed(text if isinstance(text, str) else None, self._checked_ids(token_ids), salt)
        if not isinstance(text, str):
            raise _error("prompt", text, "a prompt dict needs `prompt` (text) or `prompt_token_ids`")
        return _Parsed(self._checked_text(text), None, salt)

    def _checked_text(self, text: str) -> str:
        if not text:
            raise _error("prompt", text, "prompt cannot be empty")
        if len(text) > _SHORT_TOKEN_CHARS * self._max_model_len:
            least = len(text) // (_SHRINK * self._longest_token)
            if least > self._max_model_len:
                raise _error("prompt", len(text), f"prompt has at least {least} tokens, but {self._length_rule()}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _error("prompt", text, f"prompt is not valid Unicode: {error.reason} at {error.start}") from None
        return text

    def _checked_ids(self, token_ids: Sequence[Any]) -> list[int]:
        if not token_ids:
            raise _error("prompt", token_ids, "prompt cannot be empty")
        ids = list(token_ids)
        if not all(type(token_id) is int for token_id in ids):
            for position, token_id in enumerate(ids):
                if isinstance(token_id, bool) or not isinstance(token_id, Integral):
                    shown = reprlib.repr(token_id)
                    raise _error("prompt", token_id, f"token ids must be integers, got {shown} at position {position}")
            ids = [int(token_id) for token_id in ids]
        self._check_vocabulary("prompt", ids)
        return ids

    @cached_property
    def _longest_token(self) -> int:
        """Characters; the whole vocabulary is looked at, so only a huge text asks for it."""
        return max(map(len, self._tokenizer.get_vocab()))

    def _length_rule(self) -> str:
        limit = f"the maximum context length is {self._max_model_len} tokens, prompt and output together"
        return f"{limit}; shorten the prompt, or {self._way_to_more_length}"

    def _finish(self, parsed: _Parsed, checked: _CheckedParams | RequestError) -> EngineInput | RequestError:
        if parsed.error is not None:
            return parsed.error
        if isinstance(checked, RequestError):
            return checked
        params = checked.params
        ids = parsed.token_ids or []
        if not ids:
            return _error("prompt", parsed.text, "prompt cannot be empty: it has no tokens")
        if parsed.text is not None:
            try:
                self._check_vocabulary("prompt", ids)  # a tokenizer may know more tokens than the model
            except RequestError as error:
                return error
        room = self._max_model_len - len(ids)
        if room < (1 if checked.pooling is None else 0):
            return _error("prompt", len(ids), f"prompt has {len(ids)} tokens, but {self._length_rule()}")
        if params.min_tokens > room:
            return _error(
                "min_tokens",
                params.min_tokens,
                f"min_tokens ({params.min_tokens}) is more than the {counted(room, 'token')} that a prompt of "
                f"{counted(len(ids), 'token')} leaves of the maximum context length, {self._max_model_len}",
            )
        listed, start = params.prompt_logprob_token_ids, params.prompt_logprob_start or 0
        if listed is not None and len(listed) != len(ids) - 1 - start:
            rule = f"one for each token of the prompt ({len(ids)}) after the first {1 + start}"
            return _error(
                "prompt_logprob_token_ids", len(listed), f"prompt_logprob_token_ids has {len(listed)} rows, not {rule}"
            )
        return EngineInput(
            parsed.text, ids, params, parsed.cache_salt, grammar=checked.grammar, pooling=checked.pooling
        )

    def _checked_params(
        self, params: SamplingParams | PoolingParams, output_kind: RequestOutputKind | None, raise_queue_full: bool
    ) -> _CheckedParams | RequestError:
        if isinstance(params, PoolingParams):
            return self._checked_pooling(params)
        if not isinstance(params, SamplingParams):
            return _error("params", params, f"params must be SamplingParams, got {type(params).__name__}")
        try:
            own = params.clone()
            own.output_kind = output_kind or own.output_kind
            own.verify()
            own.eos_token_id, own.eos_token_ids = self._eos_token_id, self._eos_token_ids
            self._check_vocabulary("stop_token_ids", own.stop_token_ids or [])
            self._check_vocabulary("allowed_token_ids", own.allowed_token_ids or [])
            self._check_vocabulary("logit_bias", list(own.logit_bias or ()))
            own.bad_words_token_ids = self._tokenised_bad_words(own.bad_words or [])
            own.logprobs = None if own.logprob_token_ids else self._checked_logprobs("logprobs", own.logprobs)
            own.prompt_logprobs = self._checked_logprobs("prompt_logprobs", own.prompt_logprobs)
            self._check_scored_ids(own)
            return _CheckedParams(own, self._compiled_grammar(own))
        except RequestError as error:
            return error
        except QueueFullError as error:
            if raise_queue_full:
                raise
            return RequestError(f"structured_outputs: {error}", parameter="structured_outputs")

    def _checked_pooling(self, params: PoolingParams) -> _CheckedParams | RequestError:
        config = self._embedding
        if config.problem is not None:
            way_out = "give the engine a pooling_type to embed nevertheless"
            return _error("model", None, f"this model has no embeddings: {config.problem}; {way_out}")
        try:
            own = params.clone()
            own.verify()
        except RequestError as error:
            return error
        if own.dimensions is not None and own.dimensions > self._hidden_size:
            limit = f"the model's embeddings have {self._hidden_size}"
            return _error("dimensions", own.dimensions, f"dimensions is {own.dimensions}, but {limit}")
        own.use_activation = config.normalizes if own.use_activation is None else own.use_activation
        unsampled = SamplingParams(
            temperature=0.0, detokenize=False, skip_reading_prefix_cache=own.skip_reading_prefix_cache
        )
        unsampled.output_kind = RequestOutputKind.FINAL_ONLY
        return _CheckedParams(unsampled, pooling=own)

    def _check_scored_ids(self, own: SamplingParams) -> None:
        """Check the token ids whose logprobs are asked for. Mutates: `own.logprobs`, which is then their number."""
        if own.logprob_token_ids is not None:
            own.logprobs = len(own.logprob_token_ids)
            self._check_vocabulary("logprob_token_ids", own.logprob_token_ids)
        rows = own.prompt_logprob_token_ids or []
        if rows and len(rows[0]) > self._max_logprobs:
            limit = f"more than max_logprobs ({self._max_logprobs}); raise that engine option"
            raise _error(
                "prompt_logprob_token_ids",
                len(rows[0]),
                f"prompt_logprob_token_ids has {len(rows[0])} ids in a row, {limit}",
            )
        self._check_vocabulary("prompt_logprob_token_ids", [max(0, token_id) for row in rows for token_id in row])

    def _compiled_grammar(self, own: SamplingParams) -> CompiledGrammar | None:
        if not isinstance(own.structured_outputs, StructuredOutputsParams):
            return None
        if own.allowed_token_ids is not None:  # a complete output must be able to end
            own.allowed_token_ids = [*own.allowed_token_ids, *self._eos_token_ids.difference(own.allowed_token_ids)]
        return self._grammars.compile(own.structured_outputs)

    def _check_vocabulary(self, name: str, ids: list[int]) -> None:
        low, high = min(ids, default=0), max(ids, default=0)
        if low < 0 or high >= self._vocab_size:
            bad = low if low < 0 else high
            rule = f"is out of vocabulary: ids are in [0, {self._vocab_size - 1}]"
            raise _error(name, bad, f"{name} holds token id {bad}, which {rule}")

    def _checked_logprobs(self, name: str, value: int | None) -> int | None:
        if value is None:
            return None
        wanted = self._vocab_size if value == -1 else value
        if wanted > self._max_logprobs:
            limit = f"is greater than max allowed: {self._max_logprobs}; raise the engine option max_logprobs"
            raise _error(name, value, f"{name} ({value}) asks for {wanted} logprobs per position, which {limit}")
        return min(wanted, self._vocab_size)

    def _tokenised_bad_words(self, words: list[str]) -> list[list[int]]:
        """Tokenise each word as it appears at the start of a text and, where that differs, after a space."""
        if not words:
            return []
        stripped = [word.lstrip() or word for word in words]
        bare = self._tokenizer.encode_batch(stripped, add_special_tokens=False)
        spaced = self._tokenizer.encode_batch([" " + word for word in stripped], add_special_tokens=False)
        banned: list[list[int]] = []
        for word, plain, after_space in zip(words, bare, spaced, strict=True):
            if not plain:
                raise _error("bad_words", word, f"bad_words holds {reprlib.repr(word)}, which has no tokens")
            banned.append(plain)
            if len(after_space) == len(plain) and after_space[0] != plain[0]:
                banned.append(after_space)
        for ids in banned:
            self._check_vocabulary("bad_words", ids)
        return banned


def _error(parameter: str, value: object, message: str) -> RequestError:
    return RequestError(message + ".", parameter=parameter, value=value)
