"""Without the server's packages, the commands that need them say how to get them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TINY_LLAMA = str(Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama")


@pytest.mark.parametrize("command", ["serve", "run-batch"])
def test_a_missing_extra_is_named(command: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("")
    arguments = {"serve": [TINY_LLAMA], "run-batch": ["-i", str(source), "-o", str(tmp_path / "out"), "-m", TINY_LLAMA]}
    script = "import sys; sys.modules['msgspec'] = None; from octavo.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", script, command, *arguments[command]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'octavo[server]'" in done.stderr
    assert "Traceback" not in done.stderr
