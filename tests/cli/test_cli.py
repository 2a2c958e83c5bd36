from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from face_fakes import ByteTokenizer, echo_prompt, make_engine

import octavo
from octavo import EngineConfig
from octavo.cli.engine_flags import field_docs
from octavo.cli.generate import _completion_as_json, _json_line
from octavo.cli.main import main
from octavo.frontend.llm_engine import LLMEngine
from octavo.outputs import CompletionOutput, Logprob
from octavo.vllm_options import HARMLESS, UNSUPPORTED


class Engines:
    """Stands in for the loading of models; remembers the configs."""

    def __init__(self) -> None:
        self.configs: list[EngineConfig] = []
        self.options: dict[str, Any] = {}

    def build(self, config: EngineConfig) -> LLMEngine:
        self.configs.append(config)
        return make_engine(**self.options)[0]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    monkeypatch.setattr("octavo.llm.LLM._start", lambda llm, config: llm._attach(made.build(config)))
    return made


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


def test_a_single_prompt_is_answered_and_summed_up(engines: Engines) -> None:
    result = run("generate", "--model", "m", "--prompt", "hello", "--temperature", "0")
    assert result.exit_code == 0
    assert result.stdout == "hello\n"
    assert "5 prompt tokens, 6 generated in" in result.stderr
    assert "tokens/s" in result.stderr
    assert "KV cache: at most 1 block of 16 tokens in use" in result.stderr
    assert engines.configs == [EngineConfig("m")]


@pytest.mark.usefixtures("engines")
def test_quiet_writes_the_answer_alone() -> None:
    result = run("generate", "-m", "m", "-p", "hello", "-q")
    assert (result.stdout, result.stderr) == ("hello\n", "")


@pytest.mark.usefixtures("engines")
def test_json_is_one_line_a_prompt() -> None:
    result = run("generate", "-m", "m", "-p", "abc", "-p", "d\u00e9", "--json", "--logprobs", "1", "--stop", "c", "-q")
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["prompt"] == "abc"
    assert first["prompt_token_ids"] == [*b"abc"]
    completion = first["outputs"][0]
    assert (completion["text"], completion["token_ids"]) == ("ab", [*b"abc"])
    assert (completion["finish_reason"], completion["stop_reason"]) == ("stop", "c")
    assert completion["cumulative_logprob"] == pytest.approx(-1.5)
    assert completion["logprobs"][0]["97"]["decoded_token"] == "a"
    assert first["metrics"]["num_generation_tokens"] == 3
    assert second["outputs"][0]["text"] == "d\u00e9"


@pytest.mark.usefixtures("engines")
def test_prompts_come_from_a_file_or_stdin(tmp_path: Any) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\n")
    assert run("generate", "-m", "m", "--prompt-file", str(path), "-q").stdout == "one\ntwo\n"
    assert run("generate", "-m", "m", "--prompt-file", "-", "-q", stdin="three\n").stdout == "three\n"


@pytest.mark.usefixtures("engines")
def test_an_empty_prompt_file_is_called_empty() -> None:
    result = run("generate", "-m", "m", "--prompt-file", "-", stdin="")
    assert result.exit_code == 2
    assert "the prompt file is empty" in result.stderr


@pytest.mark.usefixtures("engines")
def test_a_system_message_without_chat_is_refused() -> None:
    result = run("generate", "-m", "m", "-p", "hello", "--system", "be brief")
    assert result.exit_code == 2
    assert "--system needs --chat" in result.stderr


@pytest.mark.usefixtures("engines")
def test_a_bad_prompt_is_reported_beside_the_answers() -> None:
    result = run("generate", "-m", "m", "-p", "good", "-p", "", "--json", "-q")
    good, bad = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 1
    assert good["outputs"][0]["text"] == "good"
    assert bad["error"]["code"] == "request_error"


@pytest.mark.usefixtures("engines")
def test_a_single_bad_prompt_is_one_line() -> None:
    result = run("generate", "-m", "m", "-p", "")
    assert result.exit_code == 1
    assert result.stderr == "Error: prompt cannot be empty.\n"


@pytest.mark.usefixtures("engines")
def test_sampling_flags_reach_the_request() -> None:
    arguments = ["--max-tokens", "2", "--min-p", "0.1", "--sampling-seed", "7", "--n", "2", "--temperature", "0.5"]
    result = run("generate", "-m", "m", "-p", "abc", "--json", "-q", *arguments)
    record = json.loads(result.stdout)
    assert [completion["text"] for completion in record["outputs"]] == ["ab", "ab"]
    assert record["metrics"]["seed"] == 7


@pytest.mark.usefixtures("engines")
def test_chat_renders_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "chat_template", "a template", raising=False)
    record = json.loads(run("generate", "-m", "m", "-p", "hi", "--chat", "--system", "s", "--json", "-q").stdout)
    assert record["prompt"] == "system: s\nuser: hi\nassistant: "


@pytest.mark.parametrize("entry", dataclasses.fields(EngineConfig)[1:], ids=lambda entry: entry.name)
def test_every_engine_option_is_a_flag_with_help(entry: dataclasses.Field[Any]) -> None:
    command = main.get_command(click.Context(main), "generate")
    assert command is not None
    (option,) = [parameter for parameter in command.params if parameter.name == entry.name]
    assert isinstance(option, click.Option)
    assert f"--{entry.name.replace('_', '-')}" in option.opts
    assert option.help is not None
    assert option.help.startswith(field_docs(EngineConfig)[entry.name])


def test_engine_flags_reach_the_engine_with_dashes_or_underscores(engines: Engines) -> None:
    arguments = [
        *("--max-model-len", "32k", "--max_num_seqs", "8", "--no-enable-prefix-caching", "--kv-cache-dtype", "float32"),
        *(
            "--hf-overrides",
            '{"rope_theta": 1}',
            "--gpu-memory-utilization",
            "0.5",
            "--seed",
            "3",
            "--block-size",
            "32",
        ),
    ]
    assert run("generate", "-m", "m", "-p", "a", "-q", *arguments).exit_code == 0
    assert engines.configs == [
        EngineConfig(
            "m",
            use_tqdm_on_load=False,
            max_model_len=32_000,
            max_num_seqs=8,
            enable_prefix_caching=False,
            kv_cache_dtype="float32",
            hf_overrides={"rope_theta": 1},
            gpu_memory_utilization=0.5,
            seed=3,
            block_size=32,
        )
    ]


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate", "-m", "m"], 2, "--prompt"),
        (["generate", "-p", "a"], 2, "--model"),
        (["generate", "-m", "m", "-p", "a", "--block-size", "x"], 2, "--block-size"),
        (["generate", "-m", "m", "-p", "a", "--hf-overrides", "[]"], 2, "JSON object"),
        (["generate", "-m", "m", "-p", "a", "--block-size", "17"], 1, "Error: --block-size must be one of"),
        (["generate", "-m", "m", "-p", "a", "--top-p", "7"], 1, "Error: --top-p must be in"),
        (
            ["generate", "-m", "m", "-p", "a", "--max-tokens", "0"],
            1,
            "Error: --max-tokens must be in [1, 2147483647], got 0.",
        ),
        (["generate", "-m", "m", "-p", "a", "--sampling-seed", "9" * 20], 1, "Error: --sampling-seed must be in"),
        (["pull", "/no/such/file.gguf"], 1, "Error: "),
        (["unknown"], 2, "unknown"),
    ],
    ids=lambda value: " ".join(value[:6]) if isinstance(value, list) else "",
)
def test_errors_are_one_line_with_a_status(arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output
    if code == 1:
        assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("engines")
def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(_engine: LLMEngine) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LLMEngine, "step", pressed)
    result = run("generate", "-m", "m", "-p", "a")
    assert result.exit_code == 130
    assert "Interrupted." in result.stderr


def test_version_and_help() -> None:
    assert octavo.__version__ in run("--version").stdout
    assert "generate" in run("--help").stdout
    assert "--kv-cache-memory-bytes" in run("generate", "--help").stdout


def test_collect_env_names_versions_kernels_and_memory() -> None:
    result = run("collect-env")
    assert result.exit_code == 0
    for name in ("octavo", "python", "numpy", "kernels", "numeric fingerprint", "threads", "memory"):
        assert name in result.stdout


def test_collect_env_tells_what_kept_weights_take(own_cache: Path) -> None:
    assert "quantized weights kept  none" in run("collect-env").stdout
    (own_cache / "weights").mkdir(parents=True)
    (own_cache / "weights" / "a-q4-b.safetensors").write_bytes(bytes(10**8))
    assert "1 model, 0.1 GB in" in run("collect-env").stdout


def test_the_summary_tells_the_format_of_the_weights(engines: Engines) -> None:
    result = run("generate", "-m", "m", "-p", "hello", "--quantization", "q4")
    assert "weights 66 MB Q4_1, 30 MB Q8_0" in result.stderr
    assert engines.configs[0].quantization == "q4"


def test_a_failed_request_is_an_error_status(engines: Engines) -> None:
    engines.options["next_token"] = lambda ids, n: -1 if len(ids) > n + 1 else echo_prompt(ids, n)
    result = run("generate", "-m", "m", "-p", "abc")
    assert result.exit_code == 1
    assert result.stdout == "a\n" or result.stdout == "ab\n"
    assert "Error: the model's logits are not finite" in result.stderr


@pytest.mark.usefixtures("engines")
def test_a_prompt_file_that_is_not_text_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"good\n\xff\xfe\n")
    result = run("generate", "-m", "m", "--prompt-file", str(path))
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


@pytest.mark.usefixtures("engines")
def test_an_answer_nobody_can_read_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)  # as Python does where the descriptor is closed
    with pytest.raises(SystemExit) as ended:
        main(["generate", "-m", "m", "-p", "hello", "-q"])
    assert ended.value.code == 0


@pytest.mark.usefixtures("engines")
def test_json_stands_for_bytes_that_are_no_text() -> None:
    result = run("generate", "-m", "m", "-p", "a\udcff", "--json", "-q")
    record = json.loads(result.stdout_bytes.decode("utf-8"))
    assert record["prompt"] == "a?"
    assert "not valid Unicode" in record["error"]["message"]


def test_json_has_no_infinity() -> None:
    entry = Logprob(-math.inf, rank=2, decoded_token="x")
    completion = CompletionOutput(
        0, "", [1], cumulative_logprob=-math.inf, logprobs=[{1: entry}], finish_reason="length"
    )
    record = json.loads(_json_line(_completion_as_json(completion)), parse_constant=pytest.fail)
    assert record["cumulative_logprob"] == -9999.0
    assert record["logprobs"] == [{"1": {"logprob": -9999.0, "rank": 2, "decoded_token": "x"}}]


@pytest.mark.parametrize(("typed", "meant"), [("genrate", "generate"), ("run_bach", "run-batch")])
def test_a_mistyped_command_names_the_near_one(typed: str, meant: str) -> None:
    result = run(typed)
    assert result.exit_code == 2
    assert f"did you mean '{meant}'?" in result.stderr


def test_a_command_may_be_written_with_an_underscore() -> None:
    assert run("run_batch", "--help").exit_code == 0


def test_the_list_of_commands_is_not_cut() -> None:
    assert "..." not in run("--help").stdout.partition("Commands:")[2]


MODEL_COMMANDS = [
    *("chat", "explain", "generate", "inspect", "pull", "roofline", "run-batch", "serve", "trace"),
    *("bench kernels", "bench latency", "bench startup", "bench throughput", "lab batching"),
]


def command_of(name: str) -> click.Command:
    command: click.Command | None = main
    for part in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), part)
    assert command is not None
    return command


@pytest.mark.parametrize("name", MODEL_COMMANDS)
def test_every_command_takes_its_model_as_argument_or_option(name: str) -> None:
    params = [param for param in command_of(name).params if param.name in ("model", "model_option")]
    assert [(type(param), param.opts) for param in params] == [
        (click.Argument, ["model"]), (click.Option, ["-m", "--model"]),
    ]  # fmt: skip


ENGINE_COMMANDS = {
    "bench kernels": (), "bench latency": (), "bench startup": (), "bench throughput": (), "chat": (),
    "explain": ("-p", "a"), "generate": ("-p", "a"), "inspect": (), "lab batching": (), "roofline": (),
    "run-batch": ("-i", __file__, "-o", "answers"), "serve": ("--port", "0"), "trace": ("-o", "trace"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINE_COMMANDS)
def test_every_command_with_engine_options_explains_a_flag_of_vllm_that_it_cannot_follow(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*name.split(), "m", *ENGINE_COMMANDS[name], "--tensor-parallel-size", "2")
    assert result.exit_code == 1
    expected = "--tensor-parallel-size=2 is not supported, only 1: one process uses all cores; set --num-threads."
    assert result.stderr.splitlines()[-1] == f"Error: {expected}"


@pytest.mark.parametrize("name", [name for name in MODEL_COMMANDS if name != "pull"])
def test_every_command_with_engine_options_takes_vllms_flags_and_hides_them(name: str) -> None:
    params = {opt: param for param in command_of(name).params for opt in param.opts}
    for flag in (*HARMLESS, *UNSUPPORTED):
        option = params["--" + flag.replace("_", "-")]
        assert isinstance(option, click.Option)
        assert option.hidden or option.name == flag, "its own, of that name"


def test_flags_of_vllm_that_ask_for_nothing_are_taken_with_one_notice(
    engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ("--tensor-parallel-size", "1", "--trust-remote-code", "--swap-space", "4", "--enforce-eager")
    assert run("generate", "m", "-p", "hello", "-q", *flags).stdout == "hello\n"
    assert engines.configs == [EngineConfig("m", use_tqdm_on_load=False)]
    (notice,) = caplog.messages
    assert "trust_remote_code (no remote code is ever run)" in notice


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (neutral, _) in UNSUPPORTED.items() for value in neutral if not isinstance(value, bool)],
    ids=str,
)
def test_a_value_that_asks_for_nothing_is_taken_as_a_flag(name: str, value: object, engines: Engines) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    result = run("generate", "m", "-p", "hello", "-q", "--" + name.replace("_", "-"), text)
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert engines.configs == [EngineConfig("m", use_tqdm_on_load=False)]


@pytest.mark.parametrize("arguments", [("m",), ("-m", "m"), ("--model", "m"), ("m", "-m", "m")], ids=" ".join)
def test_either_names_the_model(engines: Engines, arguments: tuple[str, ...]) -> None:
    assert run("generate", *arguments, "-p", "hello", "-q").stdout == "hello\n"
    assert [config.model for config in engines.configs] == ["m"]


@pytest.mark.parametrize("command", ["generate", "explain", "chat", "serve", "inspect"])
def test_a_command_without_a_model_says_how_to_name_one(command: str) -> None:
    result = run(command)
    assert result.exit_code == 2
    example = f"for example: octavo {command} smollm2-135m"
    assert result.stderr.splitlines()[-1] == f"Error: name the model, as MODEL or with --model, {example}"


def test_the_example_names_the_command_however_the_program_was_started() -> None:
    result = CliRunner().invoke(main, ["bench", "throughput"], prog_name="python -m octavo")
    assert "for example: octavo bench throughput smollm2-135m" in result.stderr


def test_two_models_are_one_too_many() -> None:
    result = run("generate", "a", "-m", "b", "-p", "hello")
    assert result.exit_code == 2
    assert "the model is named twice: a and b" in result.stderr


@pytest.mark.usefixtures("engines")
def test_more_tokens_than_there_is_room_for_are_pointed_out() -> None:
    result = run("generate", "m", "-p", "hello", "-q", "--max-tokens", "1000000")
    assert result.stdout == "hello\n"
    assert result.stderr.startswith("Note: --max-tokens 1000000 is more than there is room for: prompt and answer ")


def test_help_lists_a_commands_own_options_before_the_engines() -> None:
    own, engine = run("generate", "--help").stdout.split("Engine options:")
    assert "--max-tokens" in own
    assert "--help" in own
    assert "--block-size" in engine
    assert "--block-size" not in own
