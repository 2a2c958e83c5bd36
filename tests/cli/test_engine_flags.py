"""Flags of options: values and short forms of vLLM's, and words that belong to no flag."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result
from face_fakes import make_engine

from octavo import EngineConfig
from octavo.cli.main import main
from octavo.vllm_options import FOREIGN_QUANTIZATIONS


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """Configs of the models that were loaded, which are none."""
    loaded: list[EngineConfig] = []

    def start(llm: object, config: EngineConfig) -> None:
        loaded.append(config)
        llm._attach(make_engine()[0])  # type: ignore[attr-defined]

    monkeypatch.setattr("octavo.llm.LLM._start", start)
    return loaded


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def generate(*flags: str) -> Result:
    return run("generate", "m", "-p", "hello", "-q", *flags)


def test_vllms_name_for_gguf_files_asks_for_nothing(configs: list[EngineConfig]) -> None:
    assert generate("--quantization", "gguf").stdout == "hello\n"
    assert configs == [EngineConfig("m", use_tqdm_on_load=False)]


@pytest.mark.parametrize("command", ["generate", "serve"])
@pytest.mark.parametrize("value", ["awq", "fp8", "mxfp4"])
def test_a_quantization_of_vllms_is_refused_with_the_way_out(command: str, value: str) -> None:
    result = run(command, "m", *(["-p", "a"] if command == "generate" else ["--port", "0"]), "--quantization", value)
    assert result.exit_code == 1
    expected = f"Error: --quantization={value!r} is not supported: {FOREIGN_QUANTIZATIONS[value]}."
    assert result.stderr.splitlines()[-1] == expected


def test_an_8_bit_cache_of_vllms_is_refused_with_the_one_there_is() -> None:
    assert "got 'fp8'; for 8 bits use \"int8\"." in generate("--kv-cache-dtype", "fp8").stderr


def test_a_value_that_nobody_knows_is_refused_with_those_there_are() -> None:
    result = generate("--quantization", "q5")
    assert result.exit_code == 1
    assert result.stderr == "Error: --quantization must be one of 'q8', 'q4', got 'q5'.\n"


def test_help_spells_values_as_their_default() -> None:
    assert "[raw_logprobs|raw_logits|" in run("generate", "--help").stdout


@pytest.mark.parametrize("flags", [("-tp", "1"), ("-pp", "1"), ("-dp", "1"), ("-O3",), ("-O", "3")], ids=" ".join)
@pytest.mark.usefixtures("configs")
def test_short_flags_of_vllm_are_taken_as_the_long_ones(flags: tuple[str, ...]) -> None:
    assert generate(*flags).stdout == "hello\n"


def test_a_short_flag_of_vllm_that_cannot_be_followed_is_explained() -> None:
    assert "--tensor-parallel-size=2 is not supported, only 1: one process" in generate("-tp", "2").stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("generate", "m", "hello world"), "unexpected: 'hello world'. A prompt is given with -p: -p 'hello world'"),
        (("explain", "m", "-p", "hello", "world"), "unexpected: world. A prompt is given with -p: -p 'hello world'"),
        (("chat", "m", "hi"), "unexpected: hi. A message is typed when the model is there, or piped in"),
        (
            ("serve", "m", "--served-model-name", "a", "b"),
            "unexpected: b. A flag is repeated for each of its values: --served-model-name b",
        ),
        (("inspect", "m", "b"), "unexpected: b"),
        (("inspect", "-m", "m", "b"), "the model is named twice: b and m"),
        (
            ("generate", "hello", "-m", "m"),
            "the model is named twice: hello and m. A prompt is given with -p: -p hello",
        ),
        (
            ("serve", "--model", "m", "--served-model-name", "a", "b"),
            "the model is named twice: b and m. A flag is repeated for each of its values: --served-model-name b",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_words_that_belong_to_no_flag_are_refused_with_what_they_may_be_meant_for(
    arguments: tuple[str, ...], hint: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {hint}"
