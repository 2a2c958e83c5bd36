"""`SamplingParams`: how the tokens of one request are chosen, and when it stops. vLLM's names and defaults.

Everything that can be checked without a model is checked here, at construction; what needs the vocabulary or the
context length is checked by `frontend/input_processor.py`.
"""

from __future__ import annotations

import copy
import math
import numbers
import reprlib
import warnings
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NoReturn

from octavo.errors import RequestError
from octavo.structured_outputs import StructuredOutputsParams
from octavo.wording import check_keywords

GREEDY_BELOW = 1e-5
"""A temperature below this means greedy decoding."""
MIN_TEMPERATURE = 1e-2
"""Smallest temperature that is sampled with: logits divided by less overflow float32 in a softmax."""
MAX_N = 16_384
"""Completions of one prompt."""
MAX_STOP_STRINGS = 128
"""Each is matched against every new character."""
MAX_STOP_CHARS = 1 << 20
"""Characters of all stop strings of a request together."""
MAX_BAD_WORDS = 1_024
"""Each is compared with the end of the output at every step."""
MAX_SCORED_IDS = 128
"""Entries of `logprob_token_ids`."""
MAX_LOGIT_BIAS = 65_536
"""Entries of `logit_bias`; all are applied to every logit row of the request."""
LOGIT_BIAS_LIMIT = 100.0
"""`from_optional` clamps a bias to this magnitude, as OpenAI's API does."""

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class RequestOutputKind(Enum):
    """What each `RequestOutput` of a request holds."""

    CUMULATIVE = 0
    """Everything so far."""
    DELTA = 1
    """What is new since the last one."""
    FINAL_ONLY = 2
    """One output, when the request has ended."""


_LATER: dict[str, str] = {
    "thinking_token_budget": "reasoning budgets are not supported yet; use max_tokens",
    "repetition_detection": "repetition detection is not supported yet; use repetition_penalty",
    "extra_args": "there are no custom samplers that could read it; leave it out",
    "stream_interval": "outputs are streamed token by token; leave it out",
    "watermarking": "watermarking is not supported",
}
"""Parameters of vLLM that are known and not served, with the way out."""

_REMOVED: dict[str, str] = {
    "best_of": "use n and choose among the completions by cumulative_logprob",
    "use_beam_search": "beam search is not a sampling parameter; use LLM.beam_search",
    "logits_processors": "use logit_bias, allowed_token_ids or bad_words",
    "guided_decoding": "use structured_outputs=StructuredOutputsParams(...)",
    "truncate_prompt_tokens": "truncate the prompt's token ids yourself and pass them as prompt_token_ids",
}
"""Names that vLLM once had."""


@dataclass(slots=True)
class SamplingParams:
    """Parameters of one request. An engine works on a validated copy and never changes the caller's object.

    Raises: `RequestError` for a value that cannot be served, `TypeError` for an unknown name.
    """

    n: int = 1
    """Completions of the prompt."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token that was generated, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it was generated, in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or the output; above 0."""
    temperature: float = 1.0
    """In [0, 2]. Below 1e-5 is greedy; other values below 0.01 are raised to it."""
    top_p: float = 1.0
    """Keep the most probable tokens that together have this probability, in (0, 1]."""
    top_k: int = 0
    """Keep this many most probable tokens; 0 and -1 keep all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the largest probability, in [0, 1]."""
    seed: int | None = None
    """64-bit; None and -1 derive one from the engine's seed."""
    stop: str | list[str] | None = None
    """Text that ends the output and is cut from it."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the output; kept in `token_ids`, their text is cut."""
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None means up to the context length."""
    min_tokens: int = 0
    """No end-of-text token, stop token or stop string ends the output before this many tokens."""
    logprobs: int | None = None
    """Most probable tokens reported per position besides the chosen one; -1 means the whole vocabulary."""
    prompt_logprobs: int | None = None
    """The same for each prompt token. The prompt is then not read from the prefix cache."""
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """Without effect: text is made of the tokens' own bytes, so no space is ever added."""
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None
    """The form that the output must have."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these token ids."""
    allowed_token_ids: list[int] | None = None
    """No other token can be chosen."""
    bad_words: list[str] | None = None
    """The last token of each is forbidden where the output ends with the others."""
    extra_args: object = None
    thinking_token_budget: object = None
    repetition_detection: object = None
    logprob_token_ids: list[int] | None = None
    """Report these tokens per position, besides the chosen one, instead of the most probable; `logprobs`, if it is set,
    must be as many."""
    prompt_logprob_token_ids: list[list[int]] | None = None
    """Tokens to score for each prompt token but the first: [prompt tokens - 1 - prompt_logprob_start, any]; -1 pads a
    row. Reported in `RequestOutput.prompt_token_id_logprobs`. The prefix cache is then not read."""
    prompt_logprob_start: int | None = None
    """Rows at the beginning of the prompt that `prompt_logprob_token_ids` leaves out."""
    stream_interval: object = None
    watermarking: object = None
    skip_reading_prefix_cache: bool | None = None
    """Always true with `prompt_logprobs` and `prompt_logprob_token_ids`, because those rows must be computed."""

    eos_token_ids: frozenset[int] = field(default=frozenset(), init=False, repr=False, compare=False)
    """Filled in by the engine: the model's end-of-generation ids, `ignore_eos` or not."""
    eos_token_id: int | None = field(default=None, init=False, repr=False, compare=False)
    """Filled in by the engine: the one of these that is the tokenizer's own; the others are told as `stop_reason`."""
    bad_words_token_ids: list[list[int]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Filled in by the engine: `bad_words`, tokenised with and without a leading space."""

    def __new__(cls, *_args: object, **kwargs: object) -> SamplingParams:
        """Refuse unknown names, those that vLLM had with what to do instead."""
        for name in kwargs.keys() & _REMOVED:
            raise RequestError(f"{name} cannot be served: {_REMOVED[name]}.", parameter=name)
        check_keywords(cls, kwargs, _NAMES)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self.verify()

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0

    @property
    def scores_prompt(self) -> bool:
        """Whether tokens of the prompt, or others in their place, are scored."""
        return self.prompt_logprobs is not None or self.prompt_logprob_token_ids is not None

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """Ids that end the output: `stop_token_ids`, and the model's own unless `ignore_eos`."""
        own = frozenset() if self.ignore_eos else self.eos_token_ids
        return own.union(self.stop_token_ids or ())

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """Build from values of which each may be None, as they arrive in a JSON body.

        Keys of `logit_bias` may be strings of digits; its values are clamped to ±100.
        """
        given = {name: value for name, value in values.items() if value is not None}
        if "max_tokens" in values:
            given["max_tokens"] = values["max_tokens"]
        if "logit_bias" in given:
            given["logit_bias"] = _clamped_bias(given["logit_bias"])
        return cls(**given)

    def clone(self) -> SamplingParams:
        """Return a copy that shares no list with this object."""
        other = copy.copy(self)
        for name in _SHARED:
            setattr(other, name, copy.copy(getattr(self, name)))
        other.bad_words_token_ids = [list(ids) for ids in self.bad_words_token_ids]
        return other

    def verify(self) -> None:
        """Check and normalise every field. Fields may be assigned after construction, so engines call this again.

        Mutates: numbers become plain int and float, `stop` and the id lists become lists, -1 becomes "unset".
        """
        for name, reason in _LATER.items():
            if getattr(self, name) is not None:
                raise RequestError(f"{name} cannot be served: {reason}.", parameter=name, value=getattr(self, name))
        if self.flat_logprobs:
            _fail("flat_logprobs", self.flat_logprobs, "is not supported; leave it False")
        if not isinstance(self.output_kind, RequestOutputKind):
            _fail("output_kind", self.output_kind, "must be a RequestOutputKind")
        self._verify_numbers()
        self._verify_lists()
        self._verify_scored_ids()
        self._verify_structured_outputs()
        self._verify_bias()
        self._normalise_temperature()
        self.skip_reading_prefix_cache = bool(self.skip_reading_prefix_cache) or self.scores_prompt

    def _verify_numbers(self) -> None:
        self.n = _int("n", self.n, 1, MAX_N)
        self.presence_penalty = _float("presence_penalty", self.presence_penalty, "[-2, 2]", -2, 2)
        self.frequency_penalty = _float("frequency_penalty", self.frequency_penalty, "[-2, 2]", -2, 2)
        # Positive, and normal as a float32: dividing a logit by less overflows.
        interval = "[2**-126, 2**127] (positive)"
        self.repetition_penalty = _float("repetition_penalty", self.repetition_penalty, interval, 2.0**-126, 2.0**127)
        self.temperature = _float("temperature", self.temperature, "[0, 2]", 0, 2)
        self.top_p = _float("top_p", self.top_p, "(0, 1]", math.ulp(0.0), 1)
        self.min_p = _float("min_p", self.min_p, "[0, 1]", 0, 1)
        self.top_k = max(0, _int("top_k", self.top_k, -1, _INT32_MAX, "; 0 or -1 keeps all tokens"))
        if self.seed is not None:
            self.seed = _int("seed", self.seed, -(2**63), _INT64_MAX)
            self.seed = None if self.seed == -1 else self.seed
        if self.max_tokens is not None:
            self.max_tokens = _int("max_tokens", self.max_tokens, 1, _INT32_MAX)
        self.min_tokens = _int("min_tokens", self.min_tokens, 0, _INT32_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _fail("min_tokens", self.min_tokens, f"must be at most max_tokens ({self.max_tokens})")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is True or value is False:
                setattr(self, name, 1 if value else None)
            elif value is not None:
                note = " (non-negative), or -1 for the whole vocabulary"
                setattr(self, name, _int(name, value, -1, _INT32_MAX, note))

    def _verify_lists(self) -> None:
        self.stop = _texts("stop", [self.stop] if isinstance(self.stop, str) else self.stop)
        if self.stop and not self.detokenize:
            _fail("stop", self.stop, "needs text to search in: set detokenize=True, or use stop_token_ids")
        if len(self.stop) > MAX_STOP_STRINGS or sum(map(len, self.stop)) > MAX_STOP_CHARS:
            limit = f"{MAX_STOP_STRINGS} strings of {MAX_STOP_CHARS} characters together"
            _fail("stop", self.stop, f"may hold at most {limit}")
        self.stop_token_ids = list(dict.fromkeys(_token_ids("stop_token_ids", self.stop_token_ids)))
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                _fail("allowed_token_ids", self.allowed_token_ids, "cannot be empty: no token could be chosen")
        if self.bad_words is not None:
            self.bad_words = _texts("bad_words", self.bad_words)
            if len(self.bad_words) > MAX_BAD_WORDS:
                _fail("bad_words", self.bad_words, f"may hold at most {MAX_BAD_WORDS} words")

    def _verify_scored_ids(self) -> None:
        if self.logprob_token_ids is not None:
            ids = self.logprob_token_ids = _token_ids("logprob_token_ids", self.logprob_token_ids)
            if not 0 < len(ids) <= MAX_SCORED_IDS:
                _fail("logprob_token_ids", ids, f"must hold 1 to {MAX_SCORED_IDS} token ids")
            if self.logprobs not in (None, len(ids)):
                _fail("logprobs", self.logprobs, f"must be the number of logprob_token_ids ({len(ids)}), or None")
        if self.prompt_logprob_token_ids is not None:
            self.prompt_logprob_token_ids = _padded_rows("prompt_logprob_token_ids", self.prompt_logprob_token_ids)
            if self.prompt_logprob_start is not None:
                self.prompt_logprob_start = _int("prompt_logprob_start", self.prompt_logprob_start, 0, _INT32_MAX)
        elif self.prompt_logprob_start is not None:
            _fail("prompt_logprob_start", self.prompt_logprob_start, "needs prompt_logprob_token_ids")

    def _verify_structured_outputs(self) -> None:
        if isinstance(self.structured_outputs, dict):
            self.structured_outputs = StructuredOutputsParams.from_mapping(self.structured_outputs)
        elif self.structured_outputs is not None:
            if not isinstance(self.structured_outputs, StructuredOutputsParams):
                _fail(
                    "structured_outputs",
                    self.structured_outputs,
                    "must be StructuredOutputsParams or a dict of its fields",
                )
            self.structured_outputs.verify()

    def _verify_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, dict):
            _fail("logit_bias", self.logit_bias, "must be a dict of token id to bias")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            _fail("logit_bias", self.logit_bias, f"may hold at most {MAX_LOGIT_BIAS} entries")
        self.logit_bias = {
            _int("logit_bias", token_id, 0, _INT32_MAX): _float("logit_bias", bias, "a finite range", -1e30, 1e30)
            for token_id, bias in self.logit_bias.items()
        }

    def _normalise_temperature(self) -> None:
        if self.temperature < GREEDY_BELOW:
            if self.n > 1:
                _fail("n", self.n, "must be 1 when using greedy sampling: all completions would be the same")
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            warnings.warn(
                f"temperature {self.temperature} is raised to {MIN_TEMPERATURE}; 0 means greedy.", stacklevel=5
            )
            self.temperature = MIN_TEMPERATURE


_SHARED = (
    *("stop", "stop_token_ids", "structured_outputs", "logit_bias", "allowed_token_ids", "bad_words"),
    *("logprob_token_ids", "prompt_logprob_token_ids"),
)
"""Fields that hold something that may be changed."""
_NAMES = frozenset(entry.name for entry in fields(SamplingParams) if entry.init)


@dataclass(slots=True)
class BeamSearchParams:
    """How `LLM.beam_search` searches."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Accepted for vLLM's sake: beams are scored by the model's own logprobs, which it does not change."""
    length_penalty: float = 1.0
    """Scores are divided by the length to the power of this; above 1 favours long beams."""
    include_stop_str_in_output: bool = False
    """Whether the text has the token that ended it."""
    structured_outputs: None = None
    skip_special_tokens: bool = True

    def __new__(cls, *_args: object, **kwargs: object) -> BeamSearchParams:
        """Refuse unknown names with a hint."""
        check_keywords(cls, kwargs, cls.__slots__)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self.beam_width = _int("beam_width", self.beam_width, 1, MAX_N)
        self.max_tokens = _int("max_tokens", self.max_tokens, 1, _INT32_MAX)
        self.temperature = _float("temperature", self.temperature, "[0, 2]", 0, 2)
        self.length_penalty = _float("length_penalty", self.length_penalty, "[-100, 100]", -100, 100)
        if self.structured_outputs is not None:
            _fail("structured_outputs", self.structured_outputs, "is not supported in a beam search")


def _fail(name: str, value: object, rule: str) -> NoReturn:
    raise RequestError(f"{name} {rule}, got {reprlib.repr(value)}.", parameter=name, value=value)


def _int(name: str, value: object, low: int, high: int, note: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        _fail(name, value, "must be an integer")
    number = int(value)
    if not low <= number <= high:
        _fail(name, value, f"must be in [{low}, {high}]{note}")
    return number


def _float(name: str, value: object, interval: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        _fail(name, value, "must be a number")
    try:
        number = float(value)
    except OverflowError:
        _fail(name, value, "must be finite")
    if not math.isfinite(number):
        _fail(name, value, "must be finite")
    if not low <= number <= high:
        _fail(name, value, f"must be in {interval}")
    return number


def _items(name: str, value: object) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        _fail(name, value, "must be a list")
    return list(value)


def _texts(name: str, value: object) -> list[str]:
    texts = _items(name, value)
    if not all(isinstance(text, str) and text for text in texts):
        _fail(name, value, "must hold strings, and cannot contain an empty string")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        _fail(name, value, f"must hold valid Unicode ({error.reason})")
    return texts


def _token_ids(name: str, value: object) -> list[int]:
    return [_int(name, token_id, 0, _INT32_MAX) for token_id in _items(name, value)]


def _padded_rows(name: str, value: object) -> list[list[int]]:
    """Return rows of token ids, or an array of them, with -1 where a row is shorter than the longest."""
    rows = [
        [_int(name, token_id, -1, _INT32_MAX, "; -1 is none") for token_id in _items(name, row)]
        for row in _items(name, value)
    ]
    width = max(map(len, rows), default=0)
    if not width:
        _fail(name, value, "must hold a row of token ids for each prompt token to score")
    return [row + [-1] * (width - len(row)) for row in rows]


def _clamped_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, dict):
        _fail("logit_bias", bias, "must be a dict of token id to bias")
    if len(bias) > MAX_LOGIT_BIAS:
        _fail("logit_bias", bias, f"may hold at most {MAX_LOGIT_BIAS} entries")
    clamped = {}
    for key, value in bias.items():
        if isinstance(key, str) and not (key.isdecimal() and len(key) < 20):
            _fail("logit_bias", key, "must have token ids as keys")
        token_id = int(key) if isinstance(key, str) else key
        number = _float("logit_bias", value, "a finite range", -math.inf, math.inf)
        clamped[token_id] = min(LOGIT_BIAS_LIMIT, max(-LOGIT_BIAS_LIMIT, number))
    return clamped
