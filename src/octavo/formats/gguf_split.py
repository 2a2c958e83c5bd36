"""Names of the files that one GGUF model may be split into: NAME-00001-of-00003.gguf, counted from 1."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


def part_names(name: str) -> list[str] | None:
    """Return the names of all parts of the model that a file called `name` is a part of, or None if it is no part."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return None
    return [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, int(match["count"]) + 1)]


def models_among(names: Sequence[str]) -> list[str]:
    """Return one name for each model that GGUF files make: of a split one, its first part, there or not."""
    return list(dict.fromkeys((part_names(name) or [name])[0] for name in names))
