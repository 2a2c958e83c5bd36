"""vLLM's flags that have no effect here, or none yet: taken, so that command lines made for it work or fail clearly."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from octavo.vllm_options import HARMLESS, UNSUPPORTED

logger = logging.getLogger("octavo")

Command = TypeVar("Command", bound=Callable[..., Any])

_SWITCHES = {
    "async_scheduling",
    "disable_custom_all_reduce",
    "disable_log_requests",
    "disable_log_stats",
    "enforce_eager",
    "scheduler_reserve_full_isl",
    "trust_remote_code",
} | {name for name, (neutral, _) in UNSUPPORTED.items() if any(value is False for value in neutral)}
"""Of the engine's: those that take no value."""
_SERVER_FLAGS = {
    "api_server_count": "there is one process",
    "chat_template_content_format": "it is read off the template",
    "disable_fastapi_docs": "there are no such pages",
    "disable_frontend_multiprocessing": "there is one process",
    "enable_prompt_tokens_details": "cached tokens are always told",
    "enable_reasoning": "it is read off the template, or set reasoning_parser",
    "enable_request_id_headers": "request ids are always sent back",
    "enable_server_load_tracking": "/load always counts",
    "h11_max_header_count": "set max_headers",
    "h11_max_incomplete_event_size": "set max_header_bytes",
    "max_log_len": "texts are never logged",
    "response_role": "answers are the assistant's",
}
"""Flags of vLLM's server without an effect, and why nothing is lost."""
_SHORT = {
    "compilation_config": "-cc",
    "data_parallel_size": "-dp",
    "decode_context_parallel_size": "-dcp",
    "optimization_level": "-O",
    "pipeline_parallel_size": "-pp",
    "tensor_parallel_size": "-tp",
}
"""vLLM's short forms of them."""
_SERVER_SWITCHES = ("disable_", "enable_")
PREFIX = "foreign_"
"""Of the parameters that hold the engine's."""
_SERVER_PREFIX = "server_foreign_"


def engine_foreign_flags(taken: Collection[str]) -> list[click.Option]:
    """Return a hidden flag for each of vLLM's engine options whose flag a command does not have itself."""
    names = [name for name in sorted(HARMLESS.keys() | UNSUPPORTED.keys()) if _flag(name) not in taken]
    return [
        click.Option([*_declared(name, name in _SWITCHES), PREFIX + name], default=None, hidden=True) for name in names
    ]


def server_foreign_flags(command: Command) -> Command:
    """Add a hidden flag for each of vLLM's flags of a server that has no effect here."""
    for name in _SERVER_FLAGS:
        declared = _declared(name, name.startswith(_SERVER_SWITCHES))
        command = click.option(*declared, _SERVER_PREFIX + name, default=None, hidden=True)(command)
    return command


def given_foreign_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's among such flags of a command, by the option's name."""
    return {
        name.removeprefix(PREFIX): _value(value)
        for name, value in values.items()
        if name.startswith(PREFIX) and value is not None
    }


def note_server_flags(values: Mapping[str, Any]) -> None:
    """Give one notice about the server's among such flags of a command."""
    names = sorted(name for name in _SERVER_FLAGS if values.get(_SERVER_PREFIX + name) is not None)
    if names:
        logger.warning("options without effect: %s", "; ".join(f"{name} ({_SERVER_FLAGS[name]})" for name in names))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _declared(name: str, is_switch: bool) -> list[str]:
    """Return the forms of a flag."""
    flag = f"{_flag(name)}/--no-{_flag(name)[2:]}" if is_switch else _flag(name)
    return [_SHORT[name], flag] if name in _SHORT else [flag]


def _value(text: Any) -> Any:
    """Return the number, dict or list that a flag's value spells, or the text that it is."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text
