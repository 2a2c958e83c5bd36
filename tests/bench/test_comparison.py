"""The comparison with other engines: how their benchmarks are read, what is written of it."""

from __future__ import annotations

import json
import stat
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import driver
import engines
import octavo_adapter
import plot
import pytest
import results
import work
from face_fakes import ByteTokenizer

TINY_LLAMA = str(Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama")
EQUAL_JOB = {"name": "job", "kind": "job", "prompts": [[1, 2]] * 4, "output_lens": [8] * 4}
MIXED_JOB = {"name": "mixed", "kind": "job", "prompts": [[1, 2], [1]], "output_lens": [8, 8]}
PREFILL = {"name": "prefill", "kind": "prefill", "prompts": [[1] * 6, [2] * 6]}
DECODE = {"name": "decode", "kind": "decode", "prompts": [[1, 2]] * 6, "output_len": 5}


def make_script(path: Path, printed: str) -> Path:
    """A program that prints, and keeps its arguments in a file beside it."""
    path.write_text(f'#!/bin/sh\necho "$@" >> "{path}.arguments"\ncat <<\'END\'\n{printed}\nEND\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def make_llama(tmp_path: Path) -> engines.LlamaCpp:
    bench = make_script(tmp_path / "bench", json.dumps([{"avg_ts": 290.0, "build_number": 7}]))
    batched = make_script(tmp_path / "batched", 'loading\n{"pl": 3, "speed_tg": 118.0, "t": 2.0}\n')
    return engines.LlamaCpp("m.gguf", bench, batched)


def test_figures_of_llama_cpp_come_from_its_own_benchmarks(tmp_path: Path) -> None:
    done = make_llama(tmp_path).run([PREFILL, DECODE, EQUAL_JOB], [1], 2)
    assert done.figures == {"prefill": 290.0, "decode": 118.0, "job": 4 * 8 / 2.0}
    assert done.version == "build 7"
    assert "-p 6 -n 0 -r 2" in (tmp_path / "bench.arguments").read_text()
    arguments = (tmp_path / "batched.arguments").read_text().splitlines()
    assert "-npp 2 -ntg 5 -npl 3" in arguments[0]
    assert "-npp 2 -ntg 8 -npl 4" in arguments[1]


def test_unequal_requests_are_not_given_to_llama_cpp(tmp_path: Path) -> None:
    assert make_llama(tmp_path).run([MIXED_JOB], [1], 2).figures == {}


def test_the_figures_of_a_peer_are_found_before_its_log(tmp_path: Path) -> None:
    printed = '{"version": "1", "figures": {"job": 3.0}, "ready_s": 2.0, "first_token_s": 2.5}\n(worker) INFO bye'
    python = make_script(tmp_path / "python", printed)
    done = engines.PythonEngine("vllm", "model", str(python)).run([EQUAL_JOB], [1], 2)
    assert done == engines.Round("1", {"job": 3.0}, 2.0, 2.5)


def test_octavo_takes_any_of_its_options_from_the_driver() -> None:
    options = {"num_threads": 2, "enable_prefix_caching": True, "max_model_len": 32}
    engine = octavo_adapter.Octavo({"model": TINY_LLAMA, "threads": 1, "options": options})
    assert engine.generate([[1, 2, 3], [4]], [3, 5]) == 8


def test_a_peer_that_fails_ends_the_run_with_what_it_said() -> None:
    with pytest.raises(SystemExit, match="broken"):
        engines.run_process([sys.executable, "-c", "raise SystemExit('broken')"])


class FakeEngine:
    """Advances a clock: 1 s a prompt token, 2 s a further step of the batch."""

    version = "1"

    def __init__(self) -> None:
        self.now = 0.0

    def generate(self, prompts: list[list[int]], output_lens: list[int]) -> int:
        self.now += sum(map(len, prompts)) + 2.0 * (max(output_lens) - 1)
        return sum(output_lens)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(driver.time, "monotonic", lambda: fake.now)
    return fake


def test_prefill_is_prompt_tokens_over_time(engine: FakeEngine) -> None:
    assert driver._prefill(engine, PREFILL) == 1.0


def test_decode_is_what_the_tokens_after_the_first_add(engine: FakeEngine) -> None:
    assert driver._decode(engine, DECODE) == 3 * 4 / 8.0


def test_a_job_counts_its_output(engine: FakeEngine) -> None:
    assert driver._job(engine, EQUAL_JOB) == 32 / (8 + 14.0)


def test_an_engine_that_stops_early_is_caught(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "generate", lambda *_: 3)
    with pytest.raises(SystemExit, match="3 tokens came, 32 were asked for"):
        driver._job(engine, EQUAL_JOB)


def test_work_is_the_same_for_every_engine_and_run() -> None:
    names = {"prefill", "decode", "job", "mixed"}
    made = [work.make_work(names, work.FULL, ByteTokenizer(), 2048) for _ in range(2)]
    assert made[0] == made[1]
    assert [entry["name"] for entry in made[0]] == [
        "prefill 512",
        "decode B=1",
        "decode B=8",
        "decode B=32",
        "job 64 x (128 + 128)",
        "mixed 200, log-normal 200 / 100",
    ]
    assert len({len(prompt) for prompt in made[0][-1]["prompts"]}) > 50


def make_results(**more: Any) -> dict[str, Any]:
    recipe = {
        "machine": {"processor": "A CPU", "load_average": [0.1, 0.1, 0.1]},
        "threads": 2,
        "isa": "avx2",
        "versions": {"octavo": "0.1", "python": "3.11"},
        "sha256": "ab" * 32,
        "time": "now",
        "commit": "abc",
    }
    return {"name": "A Model", "rounds": 3, "recipe": recipe, **more}


def make_engine(first_token_s: float | None, **figures: float) -> dict[str, Any]:
    return {"version": "9", "figures": figures, "first_token_s": first_token_s}


def test_the_table_gives_ratios_where_both_sides_were_measured(tmp_path: Path) -> None:
    measured = {"octavo": make_engine(0.5, prefill=3000.0, mixed=9.0), "llama.cpp": make_engine(None, prefill=300.0)}
    results.write_results(make_results(engines=measured), tmp_path / "results")
    lines = (tmp_path / "RESULTS.md").read_text().splitlines()
    assert "| prefill | 3,000 | 300 | **10.0×** |" in lines
    assert "| mixed | 9 | - | - |" in lines
    assert "| start to first token | 0.50 s | - | - |" in lines


def test_results_of_several_models_stand_together(tmp_path: Path) -> None:
    for name in ("B", "A"):
        results.write_results({**make_results(), "name": name}, tmp_path / "results")
    text = (tmp_path / "RESULTS.md").read_text()
    assert 0 < text.index("## A") < text.index("## B")


def test_what_was_not_measured_yet_is_said_until_it_is(tmp_path: Path) -> None:
    results.render(tmp_path / "results")
    assert "Not measured yet" in (tmp_path / "RESULTS.md").read_text()
    results.write_results(make_results(), tmp_path / "results")
    assert "Not measured yet" not in (tmp_path / "RESULTS.md").read_text()


def test_growth_of_steps_is_plotted_and_told(tmp_path: Path) -> None:
    steps = [{"batch_size": size, "context_len": 256, "step_ms": float(size)} for size in (1, 32, 64)]
    contexts = [{"batch_size": 8, "context_len": length, "step_ms": length / 100} for length in (128, 256)]
    results.write_results(make_results(linearity=steps, context=contexts), tmp_path / "results")
    assert "t(64) / t(32) = 2.00" in (tmp_path / "RESULTS.md").read_text()
    for name in ("a-model-batch.svg", "a-model-context.svg"):
        assert ET.parse(tmp_path / "results" / name).getroot().tag.endswith("svg")


def test_a_plot_places_points_by_their_numbers() -> None:
    root = ET.fromstring(plot.line_plot("t", "x", "y", {"a": [(0, 0), (50, 5), (100, 10)]}))
    circles = [
        (float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter("{http://www.w3.org/2000/svg}circle")
    ]
    (x0, y0), (x1, y1), (x2, y2) = circles
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y2 < y0
