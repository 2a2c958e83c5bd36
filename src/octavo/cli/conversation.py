"""A conversation with a model: its messages, and the file that keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

from octavo.errors import RequestError

Message: TypeAlias = dict[str, str]

_ROLES = ("system", "user", "assistant")


class Conversation:
    """Messages in order, as a chat template reads them. The system message is the first, if there is one."""

    def __init__(self, system: str | None = None) -> None:
        self._system = system
        self._turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """All messages."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return system + self._turns

    @property
    def num_turns(self) -> int:
        """Messages of the user."""
        return sum(message["role"] == "user" for message in self._turns)

    def set_system(self, text: str | None) -> None:
        """Begin again with another system message, or without one."""
        self._system = text
        self._turns.clear()

    def add(self, role: str, content: str) -> None:
        """Append a message."""
        self._turns.append({"role": role, "content": content})

    def drop_last(self) -> None:
        """Forget the last message, which could not be answered."""
        self._turns.pop()

    def reset(self) -> None:
        """Forget all but the system message."""
        self._turns.clear()

    def save(self, path: Path) -> None:
        """Write the messages as JSON."""
        path.write_text(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def load(self, path: Path, system: str | None = None) -> None:
        """Replace the messages by those of a file.

        Args:
            system: a system message instead of the file's.

        Raises: RequestError if it holds something else, and this conversation stays; OSError.
        """
        messages = _checked(path.read_bytes(), path)
        has_system = bool(messages) and messages[0]["role"] == "system"
        self._system = messages[0]["content"] if has_system and system is None else system
        self._turns = messages[has_system:]


def _checked(data: bytes, path: Path) -> list[Message]:
    try:
        messages = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is not JSON: {error}") from error
    if not isinstance(messages, list):
        raise RequestError(f"{path} holds a {type(messages).__name__}, expected a list of messages")
    for index, message in enumerate(messages):
        is_message = isinstance(message, dict) and set(message) == {"role", "content"}
        if not is_message or message["role"] not in _ROLES or not isinstance(message["content"], str):
            raise RequestError(
                f"{path}: message {index} is {message!r:.200}, expected a role of {', '.join(_ROLES)} and a content"
            )
    return messages
