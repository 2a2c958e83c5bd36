"""`StructuredOutputsParams`: the form that a request's output must have. vLLM's names and rules.

What can be said without the grammar library is checked here; schemas and grammars are read by `grammar/compiler.py`.
"""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from octavo.errors import RequestError
from octavo.wording import check_keywords

KINDS = ("json", "regex", "choice", "grammar", "json_object")
"""Ways to say what is allowed, of which a request uses one."""


@dataclass(slots=True)
class StructuredOutputsParams:
    """What the output must look like: exactly one of the first five, and options for JSON.

    Raises: `RequestError` for values that cannot be served.
    """

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema, as text or as what its text stands for."""
    regex: str | None = None
    """Matches the whole output; no look-around, no back-references."""
    choice: list[str] | None = None
    """The output is one of these."""
    grammar: str | None = None
    """A context-free grammar, in Lark's notation or as GBNF (EBNF with `::=`)."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool = False
    """JSON without whitespace between its parts."""
    disable_additional_properties: bool = False
    """JSON objects of a schema have no properties but those it names, where it does not say otherwise."""
    whitespace_pattern: str | None = None
    """Regular expression of the whitespace that may stand between the parts of JSON."""
    structural_tag: object = None
    """Not supported."""

    def __new__(cls, *_args: object, **kwargs: object) -> StructuredOutputsParams:
        """Refuse unknown names with a hint."""
        check_keywords(cls, kwargs, (entry.name for entry in fields(cls)))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self.verify()

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> StructuredOutputsParams:
        """Build from a JSON object. Raises: `RequestError`, for unknown names too."""
        names = {entry.name for entry in fields(cls)}
        unknown = [name for name in values if name not in names]
        if unknown:
            _fail(f"has no field {reprlib.repr(unknown[0])}; it has {', '.join(sorted(names - {'structural_tag'}))}")
        return cls(**{name: value for name, value in values.items() if value is not None})

    @property
    def kind(self) -> str:
        """Which of the `KINDS` is used."""
        return next(kind for kind in KINDS if self._is_given(kind))

    def verify(self) -> None:
        """Check every field. Fields may be assigned after construction, so engines call this again."""
        if self.structural_tag is not None:
            _fail("cannot be a structural_tag here; write it as a grammar")
        given = [kind for kind in KINDS if self._is_given(kind)]
        if len(given) != 1:
            stated = f"{', '.join(given)} are given" if given else "none is given"
            _fail(f"needs exactly one of {', '.join(KINDS)}: {stated}")
        if self.whitespace_pattern is not None and self.disable_any_whitespace:
            _fail("has both whitespace_pattern and disable_any_whitespace; leave one out")
        if self.whitespace_pattern is not None:
            self._verify_text("whitespace_pattern", self.whitespace_pattern)
        kind = given[0]
        if kind == "choice":
            self._verify_choice()
        elif kind == "json":
            self._verify_json()
        elif kind == "json_object" and self.json_object is not True:
            _fail(f"needs json_object to be true or false, got {reprlib.repr(self.json_object)}")
        elif kind in ("regex", "grammar"):
            self._verify_text(kind, getattr(self, kind))

    def _is_given(self, kind: str) -> bool:
        value = getattr(self, kind)
        return value is not None and not (kind == "json_object" and value is False)

    def _verify_json(self) -> None:
        if isinstance(self.json, str):
            self._verify_text("json", self.json)
        elif not isinstance(self.json, (dict, bool)):
            _fail(f"needs json to be a schema, as text or as a dict, got {type(self.json).__name__}")

    def _verify_choice(self) -> None:
        choices = self.choice
        if not isinstance(choices, (list, tuple)) or not choices:
            _fail(f"needs choice to be a list of at least one text, got {reprlib.repr(choices)}")
        for choice in choices:
            self._verify_text("choice", choice)

    @staticmethod
    def _verify_text(name: str, value: object) -> None:
        if not isinstance(value, str):
            _fail(f"needs {name} to be text, got {type(value).__name__}")
        if not (value if name == "choice" else value.strip()):
            _fail(f"has an empty {name}")
        if "\0" in value:
            _fail(f"has a NUL character in {name}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            _fail(f"has text in {name} that is not valid Unicode ({error.reason})")


@dataclass(slots=True)
class FramedOutputs(StructuredOutputsParams):
    """Other forms within a form around them. Made by the server, not asked for by requests."""

    frame: str = ""
    """In Lark's notation; it refers to the others as `@name`."""
    parts: dict[str, StructuredOutputsParams] = field(default_factory=dict)
    """The others, by name."""
    parameter: str = "structured_outputs"
    """The request's field that an error is to name."""
    subject: str | None = None
    """What an error says cannot be served, where that is more than the field."""

    @property
    def kind(self) -> str:
        """Not one of the `KINDS`."""
        return "frame"

    def verify(self) -> None:
        """Check the parts."""
        for part in self.parts.values():
            part.verify()


def schema_value(schema: str | dict[str, Any] | bool | None) -> Any:
    """Return what a schema's text stands for. Raises: `RequestError` if it is not JSON."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except RecursionError:
        _fail("has a json schema that is nested too deeply")
    except ValueError as error:
        _fail(f"has a json schema that is not JSON: {error}")


def _fail(rule: str) -> NoReturn:
    raise RequestError(f"structured_outputs {rule}.", parameter="structured_outputs")
