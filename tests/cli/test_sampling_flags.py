"""All commands that generate sample alike, say so in their help, and tell why an answer was cut."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from face_fakes import ByteTokenizer, make_engine

from octavo import LLM, SamplingParams
from octavo.cli.main import main
from octavo.frontend.generation_defaults import RECOMMENDED


class Models:
    """Stands in for the loading of models; remembers what is generated with."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.params: list[SamplingParams] = []

    def attach(self, llm: LLM) -> None:
        engine, _ = make_engine(**self.options)
        engine.default_sampling_params = SamplingParams(temperature=0.25, top_k=7, max_tokens=3)
        llm._attach(engine)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    made = Models()
    monkeypatch.setattr("octavo.llm.LLM._start", lambda llm, _config: made.attach(llm))
    return made


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


def options_of(name: str) -> dict[str, click.Option]:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return {param.opts[0]: param for param in command.params if isinstance(param, click.Option)}


@pytest.mark.parametrize("name", ["generate", "explain"])
def test_commands_that_generate_sample_as_the_model_recommends(
    name: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Caught(Exception):
        pass

    def generate(_llm: LLM, _prompts: object, params: SamplingParams, **_: object) -> None:
        models.params.append(params)
        raise Caught

    engine = make_engine()[0]
    engine.default_sampling_params = SamplingParams(temperature=0.25, top_k=7)
    built = type("Built", (), {"engine": engine, "make_observer": lambda _self: None})()
    monkeypatch.setattr("octavo.explain.walkthrough.build", lambda *_, **__: built)
    monkeypatch.setattr(LLM, "generate", generate)
    result = run(name, "m", "-p", "a", "-p", "b", "--top-p", "0.5", "--sampling-seed", "4")
    assert isinstance(result.exception, Caught)
    (params,) = models.params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.25, 7, 0.5, 4)


def test_explain_has_every_prompt_and_sampling_flag_of_generate() -> None:
    of_output = {"--quiet", "--logprobs"}
    assert options_of("generate").keys() - options_of("explain").keys() == of_output - {"--quiet"} | {"-q"}


@pytest.mark.parametrize("name", ["chat", "explain", "generate"])
@pytest.mark.parametrize("parameter", sorted(set(RECOMMENDED.values()) - {"max_tokens"}))
def test_help_tells_what_a_parameter_is_where_the_model_recommends_nothing(name: str, parameter: str) -> None:
    help_text = options_of(name)["--" + parameter.replace("_", "-")].help
    assert help_text is not None
    assert help_text.endswith(f"[default: the model's, else {getattr(SamplingParams(), parameter)}]")


@pytest.mark.usefixtures("models")
def test_an_answer_that_the_model_ends_is_not_called_cut() -> None:
    result = run("generate", "m", "-p", "hello")
    assert result.stdout == "hello\n"
    assert result.stderr.startswith("5 prompt tokens, 6 generated")


@pytest.mark.usefixtures("models")
def test_an_answer_that_is_cut_by_a_flag_names_it() -> None:
    assert run("generate", "m", "-p", "hello", "--max-tokens", "3").stderr.startswith(
        "Answer cut after 3 tokens, by --max-tokens.\n"
    )
    assert "cut" not in run("generate", "m", "-p", "hello", "--max-tokens", "3", "-q").stderr


def test_an_answer_that_the_context_cuts_names_what_makes_it_longer(models: Models) -> None:
    models.options["max_model_len"] = 8
    assert run("generate", "m", "-p", "hello").stderr.startswith(
        "Answer cut where prompt and answer filled the context of 8 tokens; for more, raise --max-model-len.\n"
    )


def test_an_answer_that_the_cache_cuts_names_what_makes_it_larger(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByteTokenizer, "chat_template", "a template", raising=False)
    models.options |= {"num_blocks": 3, "next_token": lambda _ids, _n: 65}
    expected = "(answer cut where the KV cache was full; --kv-cache-memory-bytes makes it larger)\n"
    assert run("chat", "m", stdin="hello\n").stderr == expected


@pytest.mark.usefixtures("models")
def test_an_answer_that_ends_at_a_text_names_it() -> None:
    assert run("generate", "m", "-p", "hello", "--stop", "l").stderr.startswith("Answer ended at --stop 'l'.\n")


@pytest.mark.usefixtures("models")
def test_of_several_answers_the_cut_ones_are_counted_and_marked() -> None:
    stderr = run("generate", "m", "-p", "hello", "-p", "x", "--max-tokens", "3").stderr
    assert "--- prompt 0 (cut after 3 tokens, by --max-tokens)\n" in stderr
    assert "--- prompt 1 (stop)\n" in stderr
    assert "1 of 2 answers cut after 3 tokens, by --max-tokens.\n" in stderr


def test_a_refused_prompt_names_flags(models: Models) -> None:
    models.options["max_model_len"] = 4
    assert run("generate", "m", "-p", "hello").stderr.endswith("shorten the prompt, or raise --max-model-len.\n")
