"""`octavo run-batch`: what it says at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from face_fakes import make_engine

from octavo.cli.main import main

pytest.importorskip("msgspec")


def make_line(custom_id: str, **body: object) -> str:
    body = {"model": "m", "prompt": "hello", **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}) + "\n"


def test_a_model_that_cannot_be_loaded_leaves_no_output_behind(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(make_line("a"))
    arguments = ["run-batch", "-i", str(source), "-o", str(output), str(tmp_path / "no-model")]
    assert CliRunner().invoke(main, arguments).exit_code == 1
    assert not output.exists()
    output.touch()
    assert CliRunner().invoke(main, arguments).exit_code == 1
    assert output.exists(), "it was there before"


def test_a_file_of_the_system_s_errors_is_named_first(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "missing" / "out.jsonl"
    source.write_text(make_line("a"))
    result = CliRunner().invoke(main, ["run-batch", "-i", str(source), "-o", str(output), "m"])
    assert (result.exit_code, result.stderr) == (1, f"Error: {output}: no such file or directory\n")


def test_the_summary_tells_answers_from_errors_of_this_run_and_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("octavo.frontend.start.start_engine", lambda _config: make_engine()[0])
    source = tmp_path / "in.jsonl"
    arguments = ["run-batch", "-i", str(source), "-o", str(tmp_path / "out.jsonl"), "m"]
    source.write_text(make_line("a") + "{\n" + make_line("b", n=0))
    assert CliRunner().invoke(main, arguments).stderr == "3 lines: 1 answered, 2 with an error\n"
    with source.open("a") as file:
        file.write(make_line("c"))
    expected = "4 lines: 2 answered, 2 with an error (done before: 3 lines)\n"
    assert CliRunner().invoke(main, arguments).stderr == expected
    assert CliRunner().invoke(main, arguments).stderr == expected.replace("3 lines)", "4 lines)")
