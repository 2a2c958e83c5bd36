"""In which form the served model writes tool calls and thoughts: what the flags say, or its chat template shows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import ConfigError
from octavo.server.parsers import thoughts
from octavo.server.parsers.markers import CALL_CLOSE, CALL_OPEN
from octavo.server.parsers.qwen3_coder import FUNCTION

if TYPE_CHECKING:
    from octavo.tokenizer.tokenizer import Tokenizer

NO_PARSER = "none"
_AUTO = "auto"

TOOL_PARSERS: dict[str, str] = {
    "hermes": "hermes",
    "granite4": "hermes",
    "qwen3_json": "hermes",
    "qwen3_coder": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
    "llama3_json": "llama3_json",
    "llama4_json": "llama3_json",
    "mistral": "mistral",
}
"""vLLM's names of the forms of tool calls that can be read."""
REASONING_PARSERS: dict[str, str] = dict.fromkeys(
    ("deepseek_r1", "deepseek_v3", "holo2", "mimo", "nemotron_v3", "qwen3"), "think"
)
"""vLLM's names of the forms of thoughts."""

_MARKS: dict[str, tuple[str, ...]] = {
    "hermes": (CALL_OPEN, CALL_CLOSE),
    "qwen3_coder": (CALL_OPEN, CALL_CLOSE),
    "llama3_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    "think": (thoughts.OPEN, thoughts.CLOSE),
}
_HERMES = re.compile(CALL_OPEN + r'\s*(\\n|[\'"{}\s-])*?\{\\?"name\\?"')
_LLAMA = re.compile(r'\{\\?"name\\?": .*?\\?"parameters\\?": ', re.DOTALL)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Which parsers read a model's output; None where it has no such form."""

    tools: str | None = None
    """Of `TOOL_PARSERS`' values."""
    reasoning: str | None = None
    """Of `REASONING_PARSERS`' values."""
    leaves_calls: bool = False
    """Calls are to be left in the text: the server was told so."""
    has_special_marks: bool = False
    """Some marks are special tokens, which `skip_special_tokens` would leave out."""
    hides_tools: bool = False
    """No chat template speaks of tools: the model does not see them."""


def choose_format(
    templates: Iterable[str],
    special_tokens: Collection[str] = (),
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> OutputFormat:
    """Return the format of a model.

    Args:
        templates: its chat templates.
        special_tokens: the texts of those of its tokens that stand for no text.
        tool_parser: a name of vLLM's, "none", or None to see it from the templates.
        reasoning_parser: likewise.

    Raises: `ConfigError` for an unknown name.
    """
    texts = list(templates)
    tools = _chosen("tool_call_parser", tool_parser, TOOL_PARSERS, map(detect_tools, texts))
    reasoning = _chosen("reasoning_parser", reasoning_parser, REASONING_PARSERS, map(detect_reasoning, texts))
    marks = [*_MARKS.get(tools or "", ()), *_MARKS.get(reasoning or "", ())]
    return OutputFormat(
        tools,
        reasoning,
        leaves_calls=tool_parser == NO_PARSER,
        has_special_marks=any(mark in special_tokens for mark in marks),
        hides_tools=not any("tools" in text for text in texts),
    )


def model_format(
    tokenizer: Tokenizer, *, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> OutputFormat:
    """Return the format of a model, by its tokenizer. Arguments and errors are those of `choose_format`."""
    special = {tokenizer.id_to_bytes(token_id).decode("utf-8", "replace") for token_id in tokenizer.special_token_ids}
    templates = tokenizer.chat_templates
    shown = [templates[name] for name in ("tool_use", "default") if name in templates]
    return choose_format(shown, special, tool_parser=tool_parser, reasoning_parser=reasoning_parser)


def detect_tools(template: str) -> str | None:
    """Return the form in which a chat template writes the calls of earlier turns, if it is one that can be read."""
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if CALL_OPEN in template and FUNCTION in template:
        return "qwen3_coder"
    if _HERMES.search(template):
        return "hermes"
    if "ipython" in template and FUNCTION not in template and _LLAMA.search(template):
        return "llama3_json"
    return None


def detect_reasoning(template: str) -> str | None:
    """Return the form of thoughts that a chat template speaks of."""
    return "think" if thoughts.CLOSE in template else None


def _chosen(option: str, name: str | None, known: Mapping[str, str], seen: Iterable[str | None]) -> str | None:
    if not name or name == _AUTO:
        return next((form for form in seen if form is not None), None)
    if name == NO_PARSER:
        return None
    if name not in known:
        names = ", ".join(sorted(known))
        raise ConfigError(f"{option} must be one of {names}, {_AUTO} or {NO_PARSER}, got {name!r}.")
    return known[name]
