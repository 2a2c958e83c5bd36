"""Every script in examples/ runs to its end and prints what it is about, on a tiny model."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from server_process import serve

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TINY_MODEL = ROOT / "tests" / "data" / "tiny" / "llama"


def run_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str = str(TINY_MODEL)
) -> list[str]:
    """Run a script as a user would; return the lines it printed."""
    monkeypatch.setattr(sys, "argv", [name, model])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_the_batch_goes_on_without_its_bad_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_example("offline_batch.py", monkeypatch, capsys)
    assert "'': refused, prompt cannot be empty." in printed
    assert sum("logprob -" in line for line in printed) == 3


def test_the_second_turn_of_the_chat_comes_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_example("chat.py", monkeypatch, capsys)
    cached = [int(line[1:].split()[0]) for line in printed if line.endswith("were cached)")]
    assert cached[0] == 0
    assert cached[1] > 0


def test_the_stream_is_left_early(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(run_example("stream.py", monkeypatch, capsys))
    assert text.endswith(" ...")
    assert len(text) > 100


def test_the_engine_loop_serves_the_urgent_request_first_and_the_aborted_one_never(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_example("engine_loop.py", monkeypatch, capsys)
    finished = [line.split(":")[0] for line in printed if not line.startswith(("vllm:", "octavo:"))]
    assert finished == ["bad", "urgent", "ordinary", "late"]


def test_the_nearest_text_is_told_by_embeddings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_example("embeddings.py", monkeypatch, capsys)
    assert len(printed) == 3
    assert all(-1 <= float(line.split()[0]) <= 1 and line.endswith("(32 numbers)") for line in printed)


def test_answers_have_the_forms_that_are_asked_for_from_a_server_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_example("structured_output.py", monkeypatch, capsys)
    person, year, is_cold, total = printed[1::2]
    assert json.loads(person).keys() == {"name", "age"}
    assert re.fullmatch("1[67][0-9]{2}", year)
    assert is_cold in ("yes", "no")
    assert re.fullmatch(r"[0-9]+( \+ [0-9]+)+ = [0-9]+", total)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serve(TINY_MODEL, "--api-key", "secret") as server:
        with pytest.raises(SystemExit, match=r"answers with status 401: .*brings no key"):
            run_example("structured_output.py", monkeypatch, capsys, server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        for url in (server.url, f"{server.url}/v1", f"{server.url}/v1/"):
            assert run_example("structured_output.py", monkeypatch, capsys, url) == printed


def test_a_server_that_is_not_there_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"no server answers at http://127.0.0.1:9/v1/chat/completions: "):
        run_example("structured_output.py", monkeypatch, capsys, "http://127.0.0.1:9/v1")


def test_every_example_is_run_by_a_test_and_named_in_the_readme() -> None:
    tests, readme = Path(__file__).read_text(encoding="utf-8"), (ROOT / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES:
        assert f'run_example("{path.name}"' in tests
        assert f"python examples/{path.name} " in readme


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_every_example_says_how_it_is_run(path: Path) -> None:
    assert f"`python examples/{path.name} [MODEL]`" in path.read_text(encoding="utf-8").splitlines()[0]


def test_streams_of_one_program_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_example("async_streams.py", monkeypatch, capsys)
    assert sorted(line.split(":")[0] for line in printed[:3]) == [
        "stream 0 (length)",
        "stream 1 (length)",
        "stream 2 (left early)",
    ]
