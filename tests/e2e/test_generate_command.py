"""`octavo generate` on a real model."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "has_hint"),
    [(["-p", "What is gravity?"], True), (["-p", "The capital of France is", "--stop", " Paris"], False)],
    ids=["ends by itself", "is stopped"],
)
def test_a_conversational_model_that_says_nothing_is_hinted_at(
    smollm2_path: Path, arguments: list[str], has_hint: bool
) -> None:
    command = ["generate", str(smollm2_path), "--temperature", "0", "--max-tokens", "20", *arguments]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.stdout) == (0, "\n")
    assert ("try --chat" in result.stderr) is has_hint
