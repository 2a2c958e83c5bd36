"""How worker processes are started; what they do is tested with those who use them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.worker_process import worker_command, worker_environment


def test_a_worker_finds_modules_where_its_owner_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_a_worker.py").write_text("import octavo\nprint('found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = worker_command("module_of_a_worker")
    assert subprocess.check_output(command, env=worker_environment(), cwd=Path(sys.prefix)) == b"found\n"
