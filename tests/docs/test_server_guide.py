"""docs/server.md: every example of it runs, against a real server; what it and the packaging call exists."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.cli.main import main

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from server_process import TINY_LLAMA, ServerProcess, serve

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


def examples(language: str) -> list[str]:
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    assert blocks
    return blocks


@pytest.fixture(scope="module")
def guide_server() -> Iterator[ServerProcess]:
    """A tiny model under the name that the guide uses."""
    with serve(TINY_LLAMA, "--served-model-name", "smollm2-135m") as process:
        yield process


@pytest.mark.parametrize("number", range(len(examples("bash"))))
def test_the_commands_are_answered(guide_server: ServerProcess, number: int) -> None:
    script = examples("bash")[number].replace("http://localhost:8000", guide_server.url)
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True)
    if done.stdout.startswith("data: "):
        assert done.stdout.endswith("data: [DONE]\n\n")
        assert '"usage":{"prompt_tokens":' in done.stdout
    else:
        assert said(json.loads(done.stdout))


def said(reply: dict[str, Any]) -> str:
    """Return the text of an answer of any of the APIs."""
    if "choices" in reply:
        text = reply["choices"][0]["message"]["content"]
    elif "output" in reply:
        text = reply["output"][0]["content"][0]["text"]
    else:
        text = reply["content"][0]["text"]
    return str(text)


@pytest.mark.parametrize("name", ["server.md", "structured_output.md"])
def test_a_client_is_installed_before_it_is_used(name: str) -> None:
    guide = (ROOT / "docs" / name).read_text(encoding="utf-8")
    clients = list(re.finditer(r"^from (openai|anthropic|langchain_openai) import", guide, re.MULTILINE))
    assert clients
    for client in clients:
        assert f"`pip install {client[1].replace('_', '-')}`" in guide[: client.start()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(examples("python"))))
def test_the_programs_print_an_answer(guide_server: ServerProcess, number: int) -> None:
    code = examples("python")[number].replace("http://localhost:8000", guide_server.url)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/server.md", "exec"), {})
    assert printed.getvalue().strip()


@pytest.mark.filterwarnings("ignore")
def test_the_client_of_the_guide_to_forms_gets_both(guide_server: ServerProcess) -> None:
    guide = (ROOT / "docs" / "structured_output.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from openai.*?)```", guide, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code.replace("http://localhost:8000", guide_server.url), "docs/structured_output.md", "exec"), {})
    assert re.search(r"name=.* age=-?\d+", printed.getvalue())
    assert printed.getvalue().splitlines()[-1] in ("yes", "no")


@pytest.mark.parametrize("name", ["Dockerfile", "packaging/octavo.service"])
def test_the_packaging_uses_flags_that_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    call = next(line for line in text.splitlines() if line.startswith(("ENTRYPOINT", "ExecStart")))
    flags = re.findall(r"--[a-z-]+", call)
    known = CliRunner().invoke(main, ["serve", "--help"]).output
    assert flags
    assert all(re.search(rf"{flag}\b", known) for flag in flags), flags


def test_the_image_runs_as_an_ordinary_user() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    last_stage = lines[max(index for index, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER octavo" in last_stage
    assert lines.index("USER octavo") < next(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
