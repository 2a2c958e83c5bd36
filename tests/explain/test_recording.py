from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from octavo.cli.main import main
from octavo.explain.recording import recording_cost
from octavo.observe.event_log import RecordedEvent
from octavo.observe.events import BlockAllocated, StepFinished

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama"


def run_command(*arguments: str) -> Result:
    small = ("--kv-cache-memory-bytes", "8M", "--max-model-len", "256")
    return CliRunner().invoke(main, ["trace", "-m", str(TINY), *small, *arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--num-prompts", "5", "--input-len", "8", "--output-len", "6"), id="random prompts"),
        pytest.param(("-p", "Hello", "-p", "there", "--max-tokens", "5"), id="given prompts"),
    ],
)
def test_a_run_is_written_as_a_trace(arguments: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    result = run_command("-o", str(path), *arguments)
    assert result.exit_code == 0
    names = {entry["name"] for entry in json.loads(path.read_text())["traceEvents"]}
    assert {"step 1", "schedule", "forward", "sample", "output", "decode", "request 0", "block allocated"} <= names
    assert "of the steps' time" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--max-tokens", "5"), "--max-tokens is for -p; without, set --output-len"),
        (("-p", "a", "--num-prompts", "5"), "--num-prompts is for random prompts, and there are none beside -p"),
    ],
    ids=["random prompts", "given prompts"],
)
def test_a_flag_of_the_other_kind_of_prompts_is_refused(
    arguments: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    result = run_command("-o", str(tmp_path / "trace.json"), *arguments)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: {problem}")


def test_it_is_said_that_prompts_are_random(tmp_path: Path) -> None:
    result = run_command("-o", str(tmp_path / "trace.json"), "--num-prompts", "2", "--output-len", "2")
    assert "Note: no -p was given, and stdin is not read: 2 random prompts." in result.stderr


def test_a_place_that_does_not_exist_is_refused_before_the_run(tmp_path: Path) -> None:
    result = run_command("-o", str(tmp_path / "missing" / "trace.json"))
    assert (result.exit_code, "no directory" in result.output) == (1, True)


def test_a_directory_is_refused_before_the_run(tmp_path: Path) -> None:
    result = run_command("-o", str(tmp_path))
    assert (result.exit_code, "is a directory: name a file in it" in result.output) == (1, True)


def test_the_cost_is_counted_over_all_events_and_steps() -> None:
    step = StepFinished(1, 0.5, 0.25, 0.25, (1, 2))
    cost = recording_cost([RecordedEvent(0.0, event) for event in (BlockAllocated(0, 1), step, step)])
    assert (cost.num_events, cost.num_steps, cost.step_seconds) == (3, 2, 1.0)
    assert cost.share == pytest.approx(3 * cost.seconds_per_event)


def test_nothing_recorded_costs_nothing() -> None:
    assert recording_cost([]).share == 0.0
