from __future__ import annotations

from typing import Any

import pytest

from octavo import BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputsParams
from octavo.wording import counted, nearest_hint


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (2048, "2,048 tokens")], ids=str
)
def test_a_noun_agrees_with_its_number(number: int, text: str) -> None:
    assert counted(number, "token") == text


@pytest.mark.parametrize(("name", "hint"), [("tokns", "; did you mean 'tokens'?"), ("zzz", "")])
def test_a_name_that_nobody_knows_is_told_its_nearest(name: str, hint: str) -> None:
    assert nearest_hint(name, ["seed", "tokens"]) == hint


@pytest.mark.parametrize(
    ("cls", "name", "meant"),
    [
        (SamplingParams, "temprature", "temperature"),
        (BeamSearchParams, "beam_with", "beam_width"),
        (PoolingParams, "dimension", "dimensions"),
        (StructuredOutputsParams, "regx", "regex"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_parameters_name_the_nearest_of_an_unknown_argument(cls: Any, name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"^{cls.__name__} got an unexpected .* '{name}'; did you mean '{meant}'"):
        cls(**{name: 1})
