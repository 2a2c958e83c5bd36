"""The commands on a tiny model: the table, the JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from octavo.cli.main import main
from octavo.native import peaks

MODEL = str(Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama")
SMALL = ("--input-len", "20", "--output-len", "5")


@pytest.fixture(autouse=True)
def quick_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure peaks once, and of small working sets only."""
    monkeypatch.setattr(peaks, "_NUM_WINDOWS", 1)
    monkeypatch.setattr(peaks.PeakMeter.measure, "__defaults__", ((1 << 20,),))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


def run_json(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-m", MODEL, "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return document


@pytest.mark.parametrize("name", ["throughput", "latency", "kernels", "startup"])
def test_every_benchmark_explains_its_flags(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "--num-threads" in result.stdout


@pytest.mark.parametrize("name", ["throughput", "latency", "kernels", "startup"])
def test_every_benchmark_names_flags_in_its_errors(name: str) -> None:
    result = run(name, "-m", MODEL, "--block-size", "7")
    assert result.exit_code == 1
    assert "--block-size must be" in str(result.stderr)
    assert "Engine options:" in run(name, "--help").stdout


def test_lists_of_numbers_are_checked_with_the_name_of_their_flag() -> None:
    result = run("kernels", "--batch-sizes", "1,x")
    assert result.exit_code == 2
    assert "'--batch-sizes': expected whole numbers separated by commas, got '1,x'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        (("throughput", "--num-prompts", "3"), "60, 15"),
        (("latency", "--batch-size", "2", "--num-iters", "2", "--num-iters-warmup", "0"), "80, 20"),
    ],
    ids=["throughput", "latency"],
)
def test_the_table_calls_the_tokens_of_all_requests_a_total(arguments: tuple[str, ...], total: str) -> None:
    assert f"\nprompt, output tokens in all  {total}\n" in run(*arguments, *SMALL, "-m", MODEL).stdout


def test_throughput_ends_with_its_figures_as_json() -> None:
    document = run_json("throughput", *SMALL, "--num-prompts", "3")
    assert (document["num_requests"], document["num_prompt_tokens"], document["num_output_tokens"]) == (3, 60, 15)
    assert document["num_cached_tokens"] == 0
    assert document["num_steps"] == 5
    assert document["output_tokens_per_s"] == pytest.approx(15 / document["total_s"])
    assert document["prefill_tokens_per_s"] > 0
    assert document["decode_tokens_per_s"] > 0
    assert document["ttft_ms"].keys() == {"p50", "p90", "p99"}
    assert 0 < document["python_share"] < 1
    assert document["fraction_of_int8_peak"] is None  # float32 weights
    assert document["fraction_of_memory_bandwidth"] > 0
    assert document["peak_rss_bytes"] > 1 << 20
    recipe = document["recipe"]
    assert recipe["options"] == {"enable_prefix_caching": False}
    assert recipe["workload"]["prefix_caching"] is False
    assert recipe["model"] == MODEL


def test_requests_without_room_are_refused_before_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("octavo.bench.session.BenchSession.warm_up")
    result = run("throughput", "--input-len", "9000", "--output-len", "4", "--num-prompts", "1", "-m", MODEL)
    assert result.exit_code == 1
    assert "--input-len and --output-len of a request are 9000 + 4 = 9004 tokens" in result.stderr


def test_the_table_comes_before_the_json() -> None:
    lines = run("throughput", *SMALL, "--num-prompts", "2", "-m", MODEL).stdout.splitlines()
    assert lines[0].startswith("model")
    assert any(line.startswith("output tokens/s") for line in lines)
    assert not any(line.startswith("{") for line in lines)


def test_a_job_without_decode_steps_has_no_decode_rate() -> None:
    document = run_json("throughput", "--input-len", "20", "--output-len", "1", "--num-prompts", "2")
    assert document["decode_tokens_per_s"] is None
    assert document["tpot_ms"] is None
    assert document["prefill_tokens_per_s"] > 0


def test_a_custom_dataset_is_served(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "ab", "output_tokens": 2}\n{"prompt": "abc"}\n')
    document = run_json("throughput", "--dataset-name", "custom", "--dataset-path", str(path), "--output-len", "4")
    assert (document["num_requests"], document["num_output_tokens"]) == (2, 6)


def test_latency_runs_one_batch_again_and_again() -> None:
    document = run_json("latency", *SMALL, "--batch-size", "2", "--num-iters", "3", "--num-iters-warmup", "0")
    assert document["num_requests"] == 6
    assert document["num_cached_tokens"] == 0
    assert document["avg_latency_s"] == pytest.approx(document["total_s"] / 3)
    assert document["latency_s"].keys() == {"p10", "p25", "p50", "p75", "p90", "p99"}


def test_prefix_caching_stays_on_where_it_is_asked_for() -> None:
    document = run_json("throughput", *SMALL, "--num-prompts", "2", "--enable-prefix-caching")
    assert document["recipe"]["workload"]["prefix_caching"] is True
    assert document["num_cached_tokens"] == 0  # the warm-up has a prompt of its own


def test_kernels_measures_each_kind_of_op_and_whole_steps() -> None:
    small = ("--batch-sizes", "2", "--input-len", "16", "--context-len", "16", "--min-seconds", "0")
    document = run_json("kernels", *small)
    kinds = {entry["op"] for entry in document["kernels"]}
    assert kinds == {"embedding", "rms_norm", "linear", "rope", "kv_write", "paged_attention", "gated_mul"}
    head = next(entry for entry in document["kernels"] if entry["shape"] == "2048x64" and entry["op"] == "linear")
    assert (head["format"], head["count"], head["num_rows"]) == ("F32", 1, 2)
    assert all(entry["seconds"] > 0 for entry in document["kernels"])
    assert [entry["num_rows"] for entry in document["steps"]] == [2, 16]


def test_startup_times_fresh_processes() -> None:
    document = run_json("startup", "--num-iters", "1")
    parts = [document[name] for name in ("python_s", "import_s", "load_s", "first_token_s")]
    assert sum(parts) == pytest.approx(document["total_s"])
    assert len(document["runs"]) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("throughput", "--input-len", "0"), "--input-len must be in [1, 16777216], got 0."),
        (("throughput", "--output-len", "600"), "128 + 600 = 728 tokens, and --max-model-len is 512"),
        (("throughput", "--dataset-name", "custom"), "--dataset-path goes with --dataset-name"),
        (("throughput", "--length-sigma", "9"), "--length-sigma must be in [0, 3], got 9.0."),
        (("latency", "--batch-size", "0"), "--batch-size must be at least 1, got 0."),
        (("latency", "--num-iters-warmup", "-1"), "--num-iters-warmup must be at least 0, got -1."),
        (("kernels", "--batch-sizes", "0"), "--batch-sizes must be numbers in [1, 4096], got [0]."),
        (("kernels", "--context-len", "100000"), "The model was made for 512 tokens; a request of 100000 is too long."),
        (("startup", "--num-iters", "0"), "--num-iters must be at least 1, got 0."),
        (("startup", "--block-size", "17"), "--block-size must be one of (16, 32, 64, 128), got 17."),
    ],
    ids=["input", "room", "custom", "sigma", "batch", "warmup", "sizes", "context", "iters", "engine-option"],
)
def test_values_that_mean_nothing_end_with_one_line(arguments: tuple[str, ...], reason: str) -> None:
    result = run(*arguments, "-m", MODEL)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_batch_sizes_that_are_no_numbers_are_wrong_usage() -> None:
    result = run("kernels", "--batch-sizes", "one", "-m", MODEL)
    assert result.exit_code == 2
    assert "expected whole numbers separated by commas, got 'one'" in result.stderr


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    result = run("kernels", "--formats", "IQ2_XS")
    assert result.exit_code == 1
    assert "formats must be of F32, F16, " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--num-threads", "-1"), "--num-threads must be "),
        (("--quantization", "q4"), "--quantization needs a model (-m): without one, only --num-threads and"),
        (("--block-size", "7"), "--block-size needs a model (-m)"),
    ],
    ids=["threads", "quantization", "block-size"],
)
def test_engine_options_without_a_model_are_checked(arguments: tuple[str, ...], reason: str) -> None:
    result = run("kernels", "--formats", "Q8_0", "--batch-sizes", "1", "--min-seconds", "0", *arguments)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_prompt_longer_than_the_model_is_refused() -> None:
    result = run("throughput", "--input-len", "5000", "-m", MODEL)
    assert result.exit_code == 1
    assert "512" in result.stderr


def test_a_model_that_is_not_there_fails_a_start_with_the_reason() -> None:
    result = run("startup", "--num-iters", "1", "-m", "no/such/path.gguf")
    assert result.exit_code == 1
    assert "no/such/path.gguf" in result.stderr
