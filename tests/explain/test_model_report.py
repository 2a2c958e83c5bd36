"""What `octavo inspect` says of a model, against hand counts and against what loading it takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_models import TINY_DIR

from octavo import EngineConfig
from octavo.cli.main import main
from octavo.errors import ConfigError, ModelLoadError
from octavo.explain.model_report import AS_STORED, BORDER_PART, inspect_model
from octavo.frontend.build import build

QWEN3_5_0_8B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
    },
    "tie_word_embeddings": True,
}
MIB = 1 << 20
PYTHON_BYTES = 12 * MIB
"""Modules that loading imports, the tokenizer, what requests leave behind."""


@pytest.fixture
def qwen_directory(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_5_0_8B))
    return str(tmp_path)


def run_inspect(model: str, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["inspect", model, *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_sampling_of_a_plain_request_is_told(qwen_directory: str) -> None:
    plain = "temperature 1, top_p 1, top_k 0, min_p 0, repetition_penalty 1 (none from a generation config)\n"
    assert f"  sampling         {plain}" in run_inspect(qwen_directory)


def test_the_lengths_of_answers_are_told_with_whose_they_are(qwen_directory: str) -> None:
    lengths = (
        "at most 16 in the API, 256 in octavo generate, 8 in octavo explain, what the context leaves in octavo chat"
    )
    assert f"  answer length    {lengths}\n" in run_inspect(qwen_directory)
    report = json.loads(run_inspect(qwen_directory, "--json"))
    assert report["default_sampling_params"]["max_tokens"] == 16
    assert report["command_max_tokens"] == {"generate": 256, "explain": 8, "chat": None}


def test_the_sampling_that_a_model_recommends_is_told(qwen_directory: str) -> None:
    (Path(qwen_directory) / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "do_sample": true}')
    recommended = "temperature 0.6, top_p 1, top_k 20, min_p 0, repetition_penalty 1 (temperature, top_k from "
    assert recommended in run_inspect(qwen_directory)
    assert json.loads(run_inspect(qwen_directory, "--json"))["default_sampling_params"]["temperature"] == 0.6
    ignored = run_inspect(
        qwen_directory, "--generation-config", "vllm", "--override-generation-config", '{"top_p": 0.5}'
    )
    assert "temperature 1, top_p 0.5, top_k 0, min_p 0, repetition_penalty 1 (top_p from " in ignored


def test_a_config_alone_gives_the_parameters_of_the_real_model(qwen_directory: str) -> None:
    report = inspect_model(EngineConfig(qwen_directory))
    assert not report.has_weights
    assert report.parameters == 752_393_024
    assert report.embedding_parameters == 248_320 * 1024


def test_the_state_of_a_request_and_the_bytes_of_a_token_are_those_of_a_hand_count(qwen_directory: str) -> None:
    report = inspect_model(EngineConfig(qwen_directory))
    assert report.kv_bytes_per_token == 6 * 2 * 2 * 256 * 2
    parts = report.cache_groups[-1].bytes_per_request
    assert parts["state"] == 18 * 16 * 128 * 128 * 4
    assert parts["convolution"] == parts[BORDER_PART] == 18 * 3 * 6144 * 4
    assert parts["open rows"] == 18 * 16 * (2 * 16 * 128 + 16) * 4
    assert round(report.state_bytes_per_request / MIB, 1) == 23.8


def test_without_prefix_caching_a_request_needs_no_border(qwen_directory: str) -> None:
    parts = inspect_model(EngineConfig(qwen_directory, enable_prefix_caching=False)).cache_groups[-1].bytes_per_request
    assert BORDER_PART not in parts


def test_a_float_model_is_shown_as_stored_and_as_each_quantization_leaves_it(qwen_directory: str) -> None:
    loads = inspect_model(EngineConfig(qwen_directory)).loads
    assert list(loads) == [AS_STORED, "q8", "q4"]
    sizes = [load.weight_bytes for load in loads.values()]
    assert sizes == sorted(sizes, reverse=True)
    matrices = 752_393_024 - 498_496
    assert sizes[0] == 2 * matrices + 4 * 498_496


def test_requests_fit_as_often_as_their_bytes_go_into_the_cache(qwen_directory: str) -> None:
    report = inspect_model(EngineConfig(qwen_directory, kv_cache_memory_bytes=1 << 30))
    fit = report.loads["q4"].requests[1]
    slot = sum(report.cache_groups[-1].bytes_per_request.values())
    assert (fit.num_tokens, fit.bytes_per_request) == (2048, 2048 * 12_288 + slot)
    assert fit.num_requests == (1 << 30) // fit.bytes_per_request


@pytest.mark.parametrize("quantization", ["q8", "q4"])
def test_the_weights_take_what_was_foretold(quantization: str) -> None:
    config = EngineConfig(str(TINY_DIR / "llama"), quantization=quantization)
    foretold = inspect_model(config).loads[quantization].weight_bytes
    built = build(config)
    try:
        taken = sum(built.weight_bytes.values())
    finally:
        built.engine.close()
    assert foretold <= taken <= 1.1 * foretold, "tiny matrices are padded to whole panels"


def test_a_quantised_file_is_shown_as_it_is_and_cannot_be_rounded_again(smollm2_path: Path) -> None:
    assert list(inspect_model(EngineConfig(str(smollm2_path))).loads) == [AS_STORED]
    with pytest.raises(ConfigError, match="quantised already"):
        inspect_model(EngineConfig(str(smollm2_path), quantization="q8"))


def test_weights_beside_the_config_are_checked_against_it(tmp_path: Path) -> None:
    shutil.copytree(TINY_DIR / "llama", tmp_path / "m")
    values = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(
        json.dumps({**values, "intermediate_size": values["intermediate_size"] + 1})
    )
    with pytest.raises(ModelLoadError, match="the config makes it"):
        inspect_model(EngineConfig(str(tmp_path / "m")))


def test_the_command_prints_tables_the_program_and_json(qwen_directory: str) -> None:
    shown = CliRunner().invoke(main, ["inspect", qwen_directory, "--program"])
    assert shown.exit_code == 0, shown.output
    assert "752,393,024" in shown.stdout
    assert "18 layers of Gated DeltaNet: 23.8 MiB" in shown.stdout
    assert "gated_delta_rule" in shown.stdout
    result = CliRunner().invoke(main, ["inspect", qwen_directory, "--json"])
    assert json.loads(result.stdout)["kv_bytes_per_token"] == 12_288


def test_an_unknown_model_is_one_line_on_stderr() -> None:
    result = CliRunner().invoke(main, ["inspect", "/nowhere/at/all"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")


def test_a_context_longer_than_the_models_is_refused_as_it_is_by_an_engine() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len \(513\) is more than the 512 tokens"):
        inspect_model(EngineConfig(str(TINY_DIR / "llama"), max_model_len=513))


def test_rotation_tables_are_those_of_the_context_that_is_wanted(qwen_directory: str) -> None:
    report = inspect_model(EngineConfig(qwen_directory, max_model_len=4096))
    assert report.rope_table_bytes == 4096 * 64 * 4
    load = report.loads["q4"]
    beside = report.rope_table_bytes + report.activation_bytes
    assert load.loaded_bytes == load.weight_bytes + load.screen_bytes + beside
    assert 0.7 < load.screen_bytes / (248_320 * 1024) < 0.9


RUN_AND_MEASURE = r"""
import re, sys, threading
from octavo import LLM, SamplingParams

def anonymous():
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", open("/proc/self/status").read())[1])

def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], anonymous())

before, peak, done = anonymous(), [0], threading.Event()
threading.Thread(target=watch, daemon=True).start()
with LLM(sys.argv[1], num_threads=1, enable_prefix_caching=False) as llm:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    llm.generate([[5 + i] * 472 for i in range(int(sys.argv[2]))], params, use_tqdm=False)
done.set()
print(peak[0] - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's process status")
def test_a_run_takes_the_memory_that_was_foretold(tmp_path: Path) -> None:
    """Within 3 %, and what Python's own objects take. Sixteen requests of 512 tokens, all at once."""
    tool = Path(__file__).parents[2] / "tools" / "make_random_checkpoint.py"
    subprocess.run([sys.executable, tool, tmp_path, "--scale", "3"], check=True, capture_output=True)
    report = inspect_model(EngineConfig(str(tmp_path), enable_prefix_caching=False))
    load = report.loads[AS_STORED]
    fit = load.requests[0]
    assert fit.num_tokens == 512
    foretold = load.loaded_bytes + 16 * fit.bytes_per_request
    command = [sys.executable, "-c", RUN_AND_MEASURE, str(tmp_path), "16"]
    taken = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 0.97 * foretold <= taken <= 1.03 * foretold + PYTHON_BYTES
