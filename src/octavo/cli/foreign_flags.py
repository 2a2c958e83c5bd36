"""vLLM's flags that have no effect here, or none yet: taken, so that command lines made for it work or fail clearly."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from octavo.vllm_options import HARMLESS, UNSUPPORTED

logger = logging.getLogger("octavo")

Command = TypeVar("Command", bound=Callable[..., Any])

_SWITCHES = frozenset(
    {
        "async_scheduling",
        "disable_custom_all_reduce",
        "disable_log_requests",
        "disable_log_stats",
        "enforce_eager",
        "scheduler_reserve_full_isl",
        "trust_remote_code",
    }
)
"""Of the harmless: those that take no value."""
_SERVER_FLAGS = {
    "api_server_count": "there is one process",
    "chat_template_content_format": "it is read off the template",
    "disable_fastapi_docs": "there are no such pages",
    "disable_frontend_multiprocessing": "there is one process",
    "enable_prompt_tokens_details": "cached tokens are always told",
    "enable_request_id_headers": "request ids are always sent back",
    "enable_server_load_tracking": "/load always counts",
    "h11_max_header_count": "set max_headers",
    "h11_max_incomplete_event_size": "set max_header_bytes",
    "max_log_len": "texts are never logged",
    "response_role": "answers are the assistant's",
}
"""Flags of vLLM's server without an effect, and why nothing is lost."""
_SERVER_SWITCHES = ("disable_", "enable_")
_PREFIX, _SERVER_PREFIX = "foreign_", "foreign_server_"


def foreign_flags(*, without: type) -> Callable[[Command], Command]:
    """Return what adds a hidden flag for each of vLLM's options that is not a field of a dataclass."""
    own = {entry.name for entry in fields(without)}

    def add(command: Command) -> Command:
        for name in sorted((HARMLESS.keys() | UNSUPPORTED.keys()) - own):
            flag = "--" + name.replace("_", "-")
            if name in _SWITCHES or False in UNSUPPORTED.get(name, ((), ""))[0]:
                flag = f"{flag}/--no-{flag[2:]}"
            command = click.option(flag, _PREFIX + name, default=None, hidden=True)(command)
        for name in _SERVER_FLAGS:
            flag = "--" + name.replace("_", "-")
            flag = f"{flag}/--no-{flag[2:]}" if name.startswith(_SERVER_SWITCHES) else flag
            command = click.option(flag, _SERVER_PREFIX + name, default=None, hidden=True)(command)
        return command

    return add


def given_foreign_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's among such flags of a command, by the option's name; give one notice about the server's."""
    given = {name: value for name, value in values.items() if name.startswith(_PREFIX) and value is not None}
    server = sorted(name.removeprefix(_SERVER_PREFIX) for name in given if name.startswith(_SERVER_PREFIX))
    if server:
        reasons = "; ".join(f"{name} ({_SERVER_FLAGS[name]})" for name in server)
        logger.warning("options without effect: %s", reasons)
    return {
        name.removeprefix(_PREFIX): _value(value)
        for name, value in given.items()
        if not name.startswith(_SERVER_PREFIX)
    }


def _value(text: Any) -> Any:
    """Return the number, dict or list that a flag's value spells, or the text that it is."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text
