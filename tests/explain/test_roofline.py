"""Rooflines: counts against hand counts, times against the step they are parts of, words against figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from octavo.bench.steps import decode_step, load_program
from octavo.cli.main import main
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.explain.machines import MACHINES, published_machine
from octavo.explain.roofline import CHOICE, ProgramView, RooflineReport, RooflineSteps, measure, run_roofline
from octavo.explain.roofline_limits import PublishedLimits
from octavo.explain.roofline_matrix import MatrixReport, matrix_roofline
from octavo.explain.roofline_words import sentences
from octavo.program.cost import program_costs
from octavo.program.ops import Linear, PagedAttention

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
H100 = published_machine("h100")
V, E, F, L, H, KVH, D = 49152, 576, 1536, 30, 9, 3, 64
"""SmolLM2-135M, from its config.json."""


def make_matrix_report(*batch_sizes: int) -> MatrixReport:
    return matrix_roofline((4096, 4096), "bfloat16", batch_sizes, H100)


def make_report(name: str = "llama", machine: str | None = "h100", **steps: object) -> RooflineReport:
    shapes = RooflineSteps(**{"batch_sizes": (1, 8), "context_len": 32, "min_seconds": 0.0, **steps})  # type: ignore[arg-type]
    return run_roofline(str(TINY / name), {"num_threads": 1}, shapes, machine)


def test_intensity_of_a_matrix_grows_with_the_batch_until_rows_are_much_of_the_traffic() -> None:
    rows = make_matrix_report(1, 32, 256, 512).rows
    assert [round(row.intensity) for row in rows] == [1, 32, 228, 410]


def test_matrix_flops_and_bytes_are_those_of_a_hand_count() -> None:
    (row,) = make_matrix_report(32).rows
    assert row.flops == 2 * 32 * 4096 * 4096
    assert row.bytes == 2 * (4096 * 4096 + 32 * 4096 + 32 * 4096)


def test_h100_becomes_compute_bound_at_about_350_rows() -> None:
    report = make_matrix_report(345, 346)
    assert report.compute_bound_batch_size == pytest.approx(345.36, abs=0.01)
    assert [row.bound for row in report.rows] == ["memory", "compute"]
    assert "990 TFLOP/s" in report.summary
    assert "compute-bound at B = 345" in report.summary


def test_a_narrow_matrix_never_becomes_compute_bound() -> None:
    assert matrix_roofline((4096, 64), "bfloat16", [1], H100).compute_bound_batch_size is None


@pytest.mark.parametrize(
    ("matrix", "dtype", "sizes", "message"),
    [
        ((0, 1), "bfloat16", [1], "matrix must be"),
        ((1, 1), "bfloat16", [0], "batch_sizes must be"),
        ((1, 1), "bfloat16", [], "batch_sizes must hold"),
        ((1, 1), "auto", [1], "dtype must be one of"),
    ],
)
def test_what_means_nothing_is_refused(matrix: tuple[int, int], dtype: str, sizes: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        matrix_roofline(matrix, dtype, sizes, H100)


def test_an_unknown_machine_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"one of h100, h200.*got 'h1000'"):
        published_machine("h1000")


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_every_machine_has_a_source_and_more_arithmetic_than_bytes(name: str) -> None:
    machine = MACHINES[name]
    assert machine.source
    assert machine.peak("bfloat16") > machine.bytes_per_s


def test_flops_of_smollm2_are_those_of_a_hand_count(smollm2_path: Path) -> None:
    loaded = load_program(EngineConfig(str(smollm2_path)), longest=200)
    costs = program_costs(loaded.program, decode_step(8, 200), loaded.weights.bytes_by_name())
    per_layer = E * (H + 2 * KVH) * D + H * D * E + E * 2 * F + F * E
    assert sum(c.flops for c in costs if isinstance(c.op, Linear)) == 2 * 8 * (L * per_layer + V * E)
    assert sum(c.flops for c in costs if isinstance(c.op, PagedAttention)) == 2 * 2 * 8 * L * H * D * 200
    rest = sum(c.flops for c in costs if not isinstance(c.op, (Linear, PagedAttention)))
    assert rest < 0.01 * sum(c.flops for c in costs)


def test_rows_of_a_step_add_up_to_the_whole_program() -> None:
    loaded = load_program(EngineConfig(str(TINY / "llama"), num_threads=1), longest=32)
    shape = decode_step(4, 32)
    costs = program_costs(loaded.program, shape, loaded.weights.bytes_by_name(), activation_bytes=2)
    step = ProgramView(loaded).step(shape, PublishedLimits(H100), None)
    assert step.flops == sum(cost.flops for cost in costs)
    chosen = next(row for row in step.rows if row.op == CHOICE)
    assert step.bytes - chosen.bytes == sum(cost.bytes for cost in costs)


def test_rows_are_as_wide_as_the_machines_arithmetic(smollm2_path: Path) -> None:
    loaded = load_program(EngineConfig(str(smollm2_path)), longest=1)
    step = ProgramView(loaded).step(decode_step(512, 1), PublishedLimits(H100), None)
    (row,) = (row for row in step.rows if row.op.startswith(f"linear {V}x{E}"))
    weight_bytes = max(loaded.weights.bytes_by_name().values())
    assert row.bytes == 2 * 512 * (V + E) + weight_bytes


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_5_text", "qwen3_5_moe"])
def test_times_of_ops_add_up_to_the_step(name: str) -> None:
    loaded = load_program(EngineConfig(str(TINY / name), tokenizer=str(TINY / "llama"), num_threads=1), longest=32)
    gaps = []
    for _ in range(
        5
    ):  # a thread that loses its core in between makes a gap once, time that is not counted makes one always
        _, (times,) = measure(loaded, [decode_step(64, 32)], 0.05)
        step = ProgramView(loaded).step(decode_step(64, 32), PublishedLimits(H100), times)
        assert step.step_s is not None
        assert sum(row.took_s or 0.0 for row in step.rows) == pytest.approx(step.sum_s)
        gaps.append(abs(step.sum_s / step.step_s - 1))
        if gaps[-1] <= 0.1:
            break
    assert min(gaps) <= 0.1


def test_every_row_of_a_measured_step_has_a_time() -> None:
    (step,) = make_report(machine=None, batch_sizes=(2,)).steps
    assert all(row.took_s is not None and row.took_s > 0 for row in step.rows)


def test_attention_has_the_same_intensity_at_every_batch_size() -> None:
    first, second = make_report().steps
    assert first.attention_intensity == pytest.approx(second.attention_intensity)
    assert second.intensity > first.intensity


def test_words_give_the_figures() -> None:
    steps = make_report().steps
    knee, batches, attention, context = sentences(steps, 8, 416)
    assert "at B = 8:" in knee
    assert batches.startswith("From B = 1 to 8 a step makes 8 times the tokens")
    assert attention.startswith(f"Attention does {steps[0].attention_intensity:.2g} operations")
    assert "past 416 tokens" in context


def test_words_say_so_where_there_is_no_knee() -> None:
    words = sentences(make_report(batch_sizes=(1,)).steps, None, None)
    assert words[0].startswith("At no batch size")
    assert words[-1].endswith("at every context the model allows.")


def test_a_machine_of_the_table_is_not_timed() -> None:
    report = make_report()
    assert report.machine.startswith("NVIDIA H100")
    assert all(step.step_s is None and step.sum_s is None for step in report.steps)


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["roofline", *arguments])


def test_the_command_answers_for_one_matrix_as_json() -> None:
    arguments = ["--matrix", "4096x4096", "--dtype", "bfloat16", "--batch-sizes", "1,32,256,512", "--machine", "h100"]
    document = json.loads(run_command(*arguments, "--json").output)
    assert [row["batch_size"] for row in document["rows"]] == [1, 32, 256, 512]
    assert {"batch_size", "flops", "bytes", "intensity"} <= document["rows"][0].keys()
    assert "compute-bound at B = 345" in document["summary"]


def test_the_matrix_may_be_of_bytes() -> None:
    arguments = ["--matrix", "4096x4096", "--dtype", "int8", "--batch-sizes", "1", "--machine", "h100", "--json"]
    (row,) = json.loads(run_command(*arguments).output)["rows"]
    assert row["bytes"] == 4096 * 4096 + 2 * 4096


def test_the_command_shows_a_table_for_each_step_and_one_of_all() -> None:
    arguments = ["-m", str(TINY / "llama"), "--batch-sizes", "1,4", "--context-len", "32", "--min-seconds", "0"]
    lines = run_command(*arguments, "--num-threads", "1").output.splitlines()
    assert [line for line in lines if line.startswith("B = ")] == [
        "B = 1, 32 tokens of context each",
        "B = 4, 32 tokens of context each",
    ]
    table = lines[lines.index("Whole steps") + 1 :]
    assert [line.split()[0] for line in table[:3]] == ["B", "1", "4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a model, or --matrix"),
        (["--matrix", "4x"], "expected outputs x inputs"),
        (["--matrix", "4x4", "--batch-sizes", "a"], "expected whole numbers"),
    ],
    ids=["nothing", "matrix", "batch-sizes"],
)
def test_wrong_usage_says_what_is_expected(arguments: list[str], message: str) -> None:
    result = run_command(*arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    "wrong", [{"batch_sizes": ()}, {"batch_sizes": (0,)}, {"context_len": 0}, {"min_seconds": -1.0}], ids=str
)
def test_steps_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RooflineSteps(**wrong)  # type: ignore[arg-type]
