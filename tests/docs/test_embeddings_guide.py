"""The program of docs/embeddings.md runs, and prints what it says: three numbers, two widths, a cosine."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "embeddings.md"


@pytest.mark.usefixtures("smollm2_path")
def test_the_python_block_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(GUIDE), "exec"), {})
    first, second = printed.getvalue().splitlines()
    assert re.fullmatch(r"\[(-?\d\.\d+(e-\d+)?(, )?){3}\] 576", first)
    width, score = second.split()
    assert (width, -1 <= float(score) <= 1) == ("64", True)
