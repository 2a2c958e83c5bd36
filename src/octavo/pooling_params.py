"""How the hidden states of a prompt become an embedding. vLLM's `PoolingParams`, as far as decoders have use for it."""

from __future__ import annotations

import copy
import reprlib
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Literal, NoReturn

from octavo.errors import RequestError
from octavo.sampling_params import RequestOutputKind, SamplingParams
from octavo.wording import check_keywords

PoolingType = Literal["last", "mean"]
"""The last token's hidden state, which has seen all the others; or the mean of all."""

_TASK = "embed"
_REPLACED = {
    "normalize": "vLLM has replaced it by use_activation",
    "softmax": "classification is not supported; leave it out",
    "activation": "vLLM has replaced it by use_activation",
    "pooling_type": "it is an option of the engine: LLM(model, pooling_type=...)",
    "truncate_prompt_tokens": "shorten the prompt",
}
_SAMPLING_PARAMETERS = frozenset(entry.name for entry in fields(SamplingParams))
_UNSERVED = ("step_tag_id", "returned_token_ids", "requires_token_ids", "late_interaction_params", "extra_kwargs")


@dataclass(slots=True)
class PoolingParams:
    """What `LLM.embed` makes of hidden states.

    Raises: `RequestError` for a value that cannot be served, `TypeError` for a name nobody knows.
    """

    use_activation: bool | None = None
    """Scale the embedding to length 1; None does, too."""
    dimensions: int | None = None
    """Keep this many leading values, before they are scaled: of use with models that were trained for it."""
    step_tag_id: object = None
    returned_token_ids: object = None
    task: str | None = None
    """"embed" is the only one."""
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    """Always true of the mean, because all rows must be computed."""
    late_interaction_params: object = None
    extra_kwargs: object = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY

    def __new__(cls, *_args: object, **kwargs: object) -> PoolingParams:
        """Refuse what vLLM had, with what to do instead."""
        for name in kwargs:
            if name in _REPLACED:
                raise RequestError(f"{name} cannot be served: {_REPLACED[name]}.", parameter=name, value=kwargs[name])
            if name in _SAMPLING_PARAMETERS and name not in cls.__slots__:
                raise TypeError(
                    f"PoolingParams has no {name}: it belongs to SamplingParams, and nothing is sampled here"
                )
        check_keywords(cls, kwargs, cls.__slots__)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self.verify()

    def clone(self) -> PoolingParams:
        """Return a copy."""
        return copy.copy(self)

    def verify(self) -> None:
        """Check every field; engines do so again, and know how long an embedding is."""
        for name in _UNSERVED:
            if getattr(self, name):
                raise RequestError(f"{name} cannot be served: leave it out.", parameter=name, value=getattr(self, name))
        if self.task not in (None, _TASK):
            _refuse("task", self.task, f'must be "{_TASK}": there is no other')
        if self.output_kind is not RequestOutputKind.FINAL_ONLY:
            _refuse("output_kind", self.output_kind, "must be FINAL_ONLY: there are no parts of an embedding")
        for name in ("use_activation", "skip_reading_prefix_cache"):
            if not isinstance(getattr(self, name), bool | None):
                _refuse(name, getattr(self, name), "must be True, False or None")
        if self.dimensions is not None:
            is_integer = isinstance(self.dimensions, Integral) and not isinstance(self.dimensions, bool)
            if not is_integer or self.dimensions < 1:
                _refuse("dimensions", self.dimensions, "must be an integer of at least 1")
            self.dimensions = int(self.dimensions)


def _refuse(name: str, value: object, rule: str) -> NoReturn:
    raise RequestError(f"{name} {rule}, got {reprlib.repr(value)}.", parameter=name, value=value)
