"""How long the terminals of a Lark grammar are when their repetitions are written out.

Rules need no such limit: the parser counts its items. A terminal is one automaton, followed to the end where it is
forced.
"""

from __future__ import annotations

import re

from octavo.grammar.regex_limits import MAX_WRITTEN_OUT, check_regex, written_out_size

_PART = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*") | (?P<regex>/(?:[^/\\\n]|\\.)+/) | (?P<comment>//[^\n]* | \#[^\n]*)
    | (?P<name>[A-Za-z_]\w*) | [{~]\s*(?P<count>\d+)(?:\s*(?:,|\.\.)\s*(?P<most>\d*))?
    | (?P<open>[(\[]) | (?P<close>[)\]])""",
    re.VERBOSE,
)
_DEFINITION = re.compile(r"^[ \t]*(?P<name>[A-Za-z_]\w*)[^:\n\"/]*:", re.MULTILINE)
_MAX_DEPTH = 200


def check_terminals(grammar: str) -> None:
    """Raise ValueError for a regular expression or a terminal that is too long when written out."""
    starts = list(_DEFINITION.finditer(grammar))
    ends = [*(start.start() for start in starts), len(grammar)][1:]
    bodies = {start["name"]: grammar[start.end() : end] for start, end in zip(starts, ends, strict=False)}
    sizes = _Sizes(bodies)
    for name, body in bodies.items():
        size = sizes.of(name) if name.isupper() else sizes.check_literals(body)
        if size > MAX_WRITTEN_OUT:
            limit = f"at most {MAX_WRITTEN_OUT} can be served"
            raise ValueError(f"terminal {name} is {size} characters long with its repetitions written out; {limit}")


class _Sizes:
    """Sizes of terminals, each worked out once."""

    def __init__(self, bodies: dict[str, str]) -> None:
        self._bodies = bodies
        self._known: dict[str, int] = {}
        self._depth = 0

    def of(self, name: str) -> int:
        """Return how long a terminal is; one that refers to itself is refused by whoever compiles it."""
        if name not in self._known:
            self._known[name] = 1
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise ValueError(f"terminals refer to each other more than {_MAX_DEPTH} levels deep")
            self._known[name] = self._measure(self._bodies.get(name, ""))
            self._depth -= 1
        return self._known[name]

    def check_literals(self, body: str) -> int:
        """Check the regular expressions of a rule; return 0."""
        for part in _PART.finditer(body):
            if part["regex"]:
                check_regex(part["regex"][1:-1])
        return 0

    def _measure(self, body: str) -> int:
        outer: list[int] = []
        size = last = 0
        for part in _PART.finditer(body):
            if part["count"]:
                last *= max(_number(part["count"]), _number(part["most"]), 1)
                continue
            if part["comment"]:
                continue
            size += last
            if part["open"]:
                outer.append(size)
                size = last = 0
            elif part["close"]:
                size, last = (outer.pop() if outer else 0), size
            elif part["name"]:
                last = self.of(part["name"]) if part["name"].isupper() else 1
            elif part["regex"]:
                check_regex(part["regex"][1:-1])
                last = written_out_size(part["regex"][1:-1])
            else:
                last = len(part["text"])
        return sum(outer) + size + last


def _number(text: str | None) -> int:
    return int((text or "0")[:12])
