"""The tools of a chat's body, checked: which functions may be called, and whether one must be."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from octavo.server.protocol.fields import refuse_field

if TYPE_CHECKING:
    from octavo.server.protocol.bodies import ChatBody
    from octavo.server.protocol.limits import RequestLimits

Choice = Literal["none", "auto", "required", "named"]

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_BROKEN_PATTERN = re.compile(r"unterminated|unbalanced|missing \)|nothing to repeat|multiple repeat|bad escape \(end")
"""What is no regular expression in any dialect."""
_MAX_PATTERN_CHARS = 1 << 13
"""Of a request's tools together: Python takes 10 µs and remembers 20 bytes for each, and all others wait meanwhile."""
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
"""Of a function that names none: templates look into its properties."""
_MODES = ("auto", "required")
"""Of allowed tools."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """What a body says about tools."""

    choice: Choice = "none"
    callable: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Names of the functions that may be called, with the schemas of their parameters."""
    shown: list[dict[str, Any]] | None = None
    """For the chat template, which sees none that may not be called, but where one is named; None where none may."""
    is_parallel: bool = True
    """Whether more than one may be called."""

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice in ("required", "named")


def read_tools(body: ChatBody, limits: RequestLimits) -> ToolRequest:
    """Return what a body says about tools. Raises: `RequestError` naming the field."""
    shown = checked_tools(body.tools, limits)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in shown}
    choice, names = _read_choice(body.tool_choice, list(schemas))
    if choice == "none" or not schemas:
        return ToolRequest()
    if choice != "named":
        shown = [tool for tool in shown if tool["function"]["name"] in names]
    return ToolRequest(
        choice, {name: schemas[name] for name in names}, shown, is_parallel=body.parallel_tool_calls is not False
    )


def checked_tools(tools: list[dict[str, Any]] | None, limits: RequestLimits) -> list[dict[str, Any]]:
    """Return tools as templates expect them. Raises: `RequestError`."""
    if len(tools or ()) > limits.max_tools:
        refuse_field("tools", f"has {len(tools or ())} entries; this server takes at most {limits.max_tools}")
    checked = [_checked_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools or ())]
    names = [tool["function"]["name"] for tool in checked]
    _check_patterns(checked)
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        refuse_field("tools", f"has two functions named {twice!r}")
    return checked


def _checked_tool(place: str, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type", "function") != "function":
        refuse_field(f"{place}.type", f'must be "function", got {reprlib.repr(tool["type"])}')
    function = tool.get("function")
    if not isinstance(function, dict):
        refuse_field(f"{place}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        rule = "must be 1 to 64 letters, digits, underscores, dots or dashes"
        refuse_field(f"{place}.function.name", f"{rule}, got {reprlib.repr(name)}")
    if not isinstance(function.get("description") or "", str):
        refuse_field(f"{place}.function.description", "must be text")
    parameters = function.get("parameters")
    if parameters is not None:
        _check_parameters(f"{place}.function.parameters", parameters)
    kept = {key: value for key, value in function.items() if value is not None and key != "strict"}
    return {"type": "function", "function": {**kept, "parameters": kept.get("parameters", _NO_PARAMETERS)}}


def _check_parameters(place: str, schema: Any) -> None:
    """Raise `RequestError` for what is no schema of an object. Keywords are not: the model reads them as it likes."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        refuse_field(place, 'must be a JSON schema whose type is "object"')
    if not isinstance(schema.get("properties", {}), dict):
        refuse_field(f"{place}.properties", "must be an object")


def _check_patterns(tools: list[dict[str, Any]]) -> None:
    """Raise `RequestError` for a pattern that is no regular expression, or for more than can be looked at."""
    num_chars = 0
    for index, tool in enumerate(tools):
        for pattern in _patterns(tool["function"]["parameters"]):
            num_chars += len(pattern) if isinstance(pattern, str) else 0
            if num_chars > _MAX_PATTERN_CHARS:
                refuse_field("tools", f"has more than {_MAX_PATTERN_CHARS} characters of patterns")
            fault = _pattern_fault(pattern)
            if fault is not None:
                place, shown = f"tools[{index}].function.parameters", reprlib.repr(pattern)
                refuse_field(place, f"has a pattern {shown} that is no regular expression: {fault}")


def _patterns(value: Any, is_schema: bool = True) -> Iterator[Any]:
    """Yield the patterns of a schema and of all within it; the keys of `properties` are names, not keywords."""
    if isinstance(value, list):
        for entry in value:
            yield from _patterns(entry)
    if not isinstance(value, dict):
        return
    for key, entry in value.items():
        if is_schema and key == "pattern":
            yield entry
        elif is_schema and key == "patternProperties" and isinstance(entry, dict):
            yield from entry
            yield from _patterns(entry, is_schema=False)
        elif not (is_schema and key in ("enum", "const", "default", "examples")):
            named = is_schema and key in ("properties", "$defs", "definitions")
            yield from _patterns(entry, is_schema=not named)


def _pattern_fault(pattern: Any) -> str | None:
    if not isinstance(pattern, str):
        return "it is no text"
    try:
        re.compile(pattern)
    except re.error as error:
        return error.msg if _BROKEN_PATTERN.match(error.msg) else None
    except (OverflowError, RecursionError):
        return "it is too large"
    return None


def _read_choice(choice: str | dict[str, Any] | None, known: list[str]) -> tuple[Choice, list[str]]:
    """Return the choice, and the names of the functions that it leaves."""
    if choice is None or choice in ("none", "auto"):
        return ("none" if choice == "none" else "auto"), known
    if choice == "required":
        _need_tools(known)
        return "required", known
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "allowed_tools"):
        allowed = '"none", "auto", "required" or {"type": "function", "function": {"name": …}}'
        refuse_field("tool_choice", f"must be {allowed}, got {reprlib.repr(choice)}")
    if choice["type"] == "allowed_tools":
        return _read_allowed(choice.get("allowed_tools"), known)
    _need_tools(known)
    return "named", [_known_name(choice, known)]


def _read_allowed(allowed: Any, known: list[str]) -> tuple[Choice, list[str]]:
    mode = allowed.get("mode", "auto") if isinstance(allowed, dict) else None
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if mode not in _MODES or not isinstance(tools, list) or not tools:
        refuse_field("tool_choice.allowed_tools", 'needs a mode ("auto" or "required") and a list of tools')
    if len(tools) > len(known):
        refuse_field("tool_choice", f"allows {len(tools)} tools, but tools has {len(known)}")
    names = [_known_name(tool, known) for tool in tools]
    return mode, list(dict.fromkeys(names))


def _known_name(choice: Any, known: list[str]) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in known:
        refuse_field("tool_choice", f"names the function {reprlib.repr(name)}, which tools does not have")
    return name


def _need_tools(known: list[str]) -> None:
    if not known:
        refuse_field("tool_choice", "demands a call, but there are no tools")
