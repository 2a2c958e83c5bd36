from __future__ import annotations

import pytest

from octavo.wording import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (2048, "2,048 tokens")], ids=str
)
def test_a_noun_agrees_with_its_number(number: int, text: str) -> None:
    assert counted(number, "token") == text
