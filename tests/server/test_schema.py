"""What /openapi.json promises holds for whatever schemathesis makes of it: requests that fit, and some that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import ServerProcess

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def run_schemathesis(server: ServerProcess, mode: str, phases: str, num_examples: int, directory: Path) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    command += ["--checks", CHECKS, "--mode", mode, "--max-examples", str(num_examples), "--seed", "1"]
    command += ["--phases", phases, "--request-timeout", "60", "--generation-database", "none"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_answers_fit_the_description(server: ServerProcess, tmp_path: Path) -> None:
    run_schemathesis(server, "all", "fuzzing", 4, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_answers_to_a_hundred_examples_an_operation_fit_it(server: ServerProcess, tmp_path: Path, mode: str) -> None:
    run_schemathesis(server, mode, "examples,coverage,fuzzing", 100, tmp_path)
    server.until(server.is_idle)
