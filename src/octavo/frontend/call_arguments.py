"""Checks what a call gives beside prompts and sampling parameters: one place for `LLM` and `LLMEngine`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, NoReturn

from octavo.errors import RequestError

OnError = Literal["raise", "return"]

_TEMPLATE_ARGUMENTS = frozenset(
    {
        "conversation",
        "messages",
        "tools",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
    }
)
"""What `chat_template_kwargs` may not set, because there is an argument for it or the engine decides it."""


def refuse(name: str, value: object, rule: str) -> NoReturn:
    """Raise the `RequestError` of an argument that cannot be served."""
    raise RequestError(f"{name} {rule}, got {reprlib.repr(value)}.", parameter=name, value=value)


def as_prompts(prompts: Any) -> list[Any]:
    """Return one prompt, or several, as a list: a list of ints is one."""
    if isinstance(prompts, (str, dict)) or not isinstance(prompts, Sequence):
        return [prompts]
    if prompts and all(isinstance(entry, Integral) for entry in prompts):
        return [prompts]
    return list(prompts)


def spread(name: str, value: Any, count: int) -> list[Any]:
    """Return one value for each prompt: the same for all, or those of a list, which must be as long."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return [value] * count
    if len(value) != count:
        message = f"The lengths of prompts ({count}) and {name} ({len(value)}) must be the same."
        raise RequestError(message, parameter=name, value=len(value))
    return list(value)


def checked_priority(value: object) -> int:
    """Return a priority that can be compared with any other."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        refuse("priority", value, "must be an integer; lower goes first")
    return int(value)


def spread_priority(value: object, count: int) -> list[int]:
    """Return the priority of each prompt; None is 0 for all."""
    return [checked_priority(entry) for entry in spread("priority", 0 if value is None else value, count)]


def adds_special_tokens(tokenization_kwargs: object, *, default: bool = True) -> bool:
    """Return whether a text gets the model's BOS and EOS."""
    given = {} if tokenization_kwargs is None else tokenization_kwargs
    if not isinstance(given, Mapping) or given.keys() - {"add_special_tokens"}:
        refuse("tokenization_kwargs", given, "must be a dict that holds only add_special_tokens")
    value = given.get("add_special_tokens", default)
    if not isinstance(value, bool):
        refuse("add_special_tokens", value, "must be True or False")
    return value


def template_variables(chat_template_kwargs: object) -> dict[str, Any]:
    """Return the variables that a caller gives a chat template."""
    given = {} if chat_template_kwargs is None else chat_template_kwargs
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        refuse("chat_template_kwargs", given, "must be a dict of variables by name")
    taken = sorted(given.keys() & _TEMPLATE_ARGUMENTS)
    if taken:
        refuse("chat_template_kwargs", taken, "cannot set what has an argument of its own or is decided by the engine")
    return dict(given)
