"""`--chat-template` of the commands that make conversations, and what they say of a model without a template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tiny_models import TINY_DIR

from octavo.cli.main import main

TEMPLATE = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without a chat template."""
    path = tmp_path_factory.mktemp("models") / "base"
    shutil.copytree(TINY_DIR / "llama", path, ignore=shutil.ignore_patterns("chat_template.jinja"))
    return str(path)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


def generate(model: str, *flags: str) -> Result:
    return run("generate", model, "-p", "hello", "--chat", "--json", "-q", "--max-tokens", "2", *flags)


@pytest.mark.parametrize("as_file", [False, True], ids=["text", "file"])
def test_a_given_template_writes_the_conversation(base_model: str, tmp_path: Path, as_file: bool) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    result = generate(base_model, "--system", "s", "--chat-template", str(path) if as_file else TEMPLATE)
    assert json.loads(result.stdout)["prompt"] == "<s><hello>"


def test_explain_takes_a_template_too(base_model: str) -> None:
    arguments = ("-p", "hello", "--chat", "--chat-template", TEMPLATE, "--max-tokens", "1", "--json")
    (request,) = json.loads(run("explain", base_model, *arguments).stdout)["requests"]
    assert request["prompt_token_ids"] == token_ids(base_model, "<hello>")


def test_a_conversation_in_the_terminal_takes_a_template_too(base_model: str) -> None:
    flags = ("--chat-template", TEMPLATE, "--max-tokens", "2", "--temperature", "0")
    result = run("chat", base_model, *flags, stdin="hello\n/stats\n")
    assert result.exit_code == 0, result.stderr
    assert f"{len(token_ids(base_model, '<hello>'))} prompt tokens, 2 generated" in result.stderr


def token_ids(model: str, text: str) -> list[int]:
    ids: list[int] = json.loads(run("generate", model, "-p", text, "--json", "-q").stdout)["prompt_token_ids"]
    return ids


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("/no/such.jinja", "--chat-template is neither a template nor a file"),
        ("{{ messages", "--chat-template cannot be used: the chat template is not valid"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "explain", "chat"])
def test_a_template_that_is_none_is_refused_before_a_model_is_looked_for(
    command: str, given: str, problem: str
) -> None:
    arguments = [] if command == "chat" else ["-p", "hello", "--chat"]
    result = run(command, "/no/such/model", *arguments, "--chat-template", given)
    assert result.exit_code == 1
    assert problem in result.stderr


def test_a_template_for_no_conversation_is_refused(base_model: str) -> None:
    result = run("generate", base_model, "-p", "hello", "--chat-template", TEMPLATE)
    assert result.exit_code == 2
    assert "--chat-template needs --chat" in result.stderr


@pytest.mark.parametrize("command", ["generate", "explain", "chat"])
def test_what_can_be_done_about_a_model_without_a_template_is_said(base_model: str, command: str) -> None:
    result = run(command, base_model, *([] if command == "chat" else ["-p", "hello", "--chat"]), stdin="hello\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no chat template" in result.stderr
    assert "give one with --chat-template" in result.stderr
    assert "chat_template=" not in result.stderr
