"""The messages of a conversation, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.conversation import Conversation
from octavo.errors import RequestError

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Why? ¿?"}
ANSWER = {"role": "assistant", "content": "Because."}


def make_conversation() -> Conversation:
    conversation = Conversation("Be brief.")
    conversation.add("user", QUESTION["content"])
    conversation.add("assistant", ANSWER["content"])
    return conversation


def test_the_system_message_comes_first_and_outlives_a_reset() -> None:
    conversation = make_conversation()
    assert conversation.messages == [SYSTEM, QUESTION, ANSWER]
    conversation.reset()
    assert conversation.messages == [SYSTEM]


def test_another_system_message_begins_again() -> None:
    conversation = make_conversation()
    conversation.set_system(None)
    assert conversation.messages == []


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    make_conversation().save(tmp_path / "kept.json")
    conversation = Conversation()
    conversation.load(tmp_path / "kept.json")
    assert conversation.messages == [SYSTEM, QUESTION, ANSWER]
    assert conversation.num_turns == 1
    conversation.reset()
    assert conversation.messages == [SYSTEM]


def test_another_system_message_may_replace_the_files(tmp_path: Path) -> None:
    make_conversation().save(tmp_path / "kept.json")
    conversation = Conversation()
    conversation.load(tmp_path / "kept.json", "Be long.")
    assert conversation.messages == [{"role": "system", "content": "Be long."}, QUESTION, ANSWER]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "holds a dict, expected a list"),
        ('["hi"]', "message 0 is 'hi'"),
        ('[{"role": "user", "content": 3}]', "message 0 is"),
        ('[{"role": "user", "content": "a"}, {"role": "king", "content": "b"}]', "message 1 is .* expected a role of"),
    ],
    ids=["cut", "no text", "deep", "object", "strings", "number", "role"],
)
def test_a_file_that_is_no_conversation_is_refused_and_changes_nothing(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "kept.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    conversation = make_conversation()
    with pytest.raises(RequestError, match=problem):
        conversation.load(tmp_path / "kept.json")
    assert conversation.messages == [SYSTEM, QUESTION, ANSWER]
