"""The two files of a batch: requests to read, and answers to append so that no kill can lose or double one.

Each answer is written whole, in one piece, and has an id that depends on its request alone: whatever the output holds
when a run starts is done.
"""

from __future__ import annotations

import codecs
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import ConfigError


class BatchRequest(msgspec.Struct):
    """What a line of the input holds."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class BatchResponse(msgspec.Struct):
    """What a server would have answered."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct):
    """Why a line could not be served."""

    code: str
    message: str


class BatchLine(msgspec.Struct):
    """What a line of the output holds."""

    id: str
    custom_id: str | None
    response: BatchResponse
    error: BatchError | None


class NumberedLine(msgspec.Struct):
    """A line of the input that is not empty."""

    number: int
    """From 1."""
    text: bytes
    id: str
    """Of its answer."""
    custom_id: str | None
    """None if there is none to be read, or if an earlier line has it: an answer belongs to one line."""
    request: BatchRequest | None
    """None if it is not one."""
    fault: str | None
    """Why not, or what else is wrong with the line."""


class _CustomId(msgspec.Struct):
    custom_id: str


class _Answered(msgspec.Struct):
    id: str
    error: Any = None


_REQUESTS = msgspec.json.Decoder(BatchRequest)
_CUSTOM_IDS = msgspec.json.Decoder(_CustomId)
_ANSWERED = msgspec.json.Decoder(_Answered)
_NOT_DECODED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_ANSWER_START = b'{"id":"batch_'
"""How each line of the output starts: what a kill left of one can be told from a stranger's file."""


def read_lines(path: Path) -> Iterator[NumberedLine]:
    """Yield the lines of a batch; a custom_id belongs to the first line that has it.

    Raises: `ConfigError` for what is not a file: it is read twice.
    """
    _check_is_file(path)
    first_lines: dict[str, int] = {}
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        for number, text in enumerate(file, 1):
            if text.strip():
                yield _numbered(number, text, first_lines)


def _numbered(number: int, text: bytes, first_lines: dict[str, int]) -> NumberedLine:
    request, fault = None, None
    try:
        request = _REQUESTS.decode(text)
        custom_id: str | None = request.custom_id
    except _NOT_DECODED as error:
        fault = f"line {number} is not a request of a batch: {str(error).replace('`', '')}"
        custom_id = _readable_custom_id(text)
    if custom_id is not None:
        first = first_lines.setdefault(custom_id, number)
        if first == number:
            return NumberedLine(number, text, _answer_id(custom_id), custom_id, request, fault)
        fault = f"line {number} has the custom_id of line {first}, {custom_id[:64]!r}; each must be used once"
    return NumberedLine(number, text, f"batch_line_{number}", None, None, fault)


def _readable_custom_id(text: bytes) -> str | None:
    """Return the custom_id of a line that is no request, if it has one."""
    try:
        return _CUSTOM_IDS.decode(text).custom_id
    except _NOT_DECODED:
        return None


def _answer_id(custom_id: str) -> str:
    return f"batch_req_{hashlib.sha256(custom_id.encode()).hexdigest()[:32]}"


def _check_is_file(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path} is not a regular file, which a batch that can be resumed needs. Name a file.")


class BatchOutput:
    """The output, open for appending, and locked against a second run.

    Args:
        path: made if it does not exist, and gone again if an error comes before the first answer. A last line that a
            kill left torn is cut off.

    Raises: `ConfigError` if it is not a file, if another run writes to it, or if it holds something else than a batch's
        answers.
    """

    def __init__(self, path: Path) -> None:
        self._is_new = not path.exists()
        if not self._is_new:
            _check_is_file(path)
        self._path = path
        self._file = path.open("ab+", buffering=0)
        try:
            self._lock()
            self.done = self._repair()
            """By the id of each answer: whether it is an error."""
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(self, error: type[BaseException] | None, *exc_info: object) -> None:
        """Put everything on the disk and unlock it."""
        if error is not None and self._is_new and not self.done:
            self._path.unlink(missing_ok=True)
        os.fsync(self._file.fileno())
        self._file.close()

    def append(self, line: BatchLine) -> None:
        """Write one answer."""
        rest = memoryview(msgspec.json.encode(line) + b"\n")
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self.done[line.id] = line.error is not None

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another run writes to {self._path}; wait for its end, or name another file.") from None

    def _repair(self) -> dict[str, bool]:
        """Cut off what a kill left of the last line; return what the others are."""
        done: dict[str, bool] = {}
        end = 0
        with self._path.open("rb") as lines:
            for number, text in enumerate(lines, 1):
                if not text.endswith(b"\n"):
                    self._check_torn(text, number)
                    break
                answered = self._answered(text, number)
                done[answered.id] = answered.error is not None
                end += len(text)
        self._file.truncate(end)
        return done

    def _check_torn(self, text: bytes, number: int) -> None:
        """Refuse to cut off what no kill can have left."""
        if text[: len(_ANSWER_START)] != _ANSWER_START[: len(text)]:
            raise self._foreign(number)

    def _answered(self, text: bytes, number: int) -> _Answered:
        try:
            return _ANSWERED.decode(text)
        except _NOT_DECODED:
            raise self._foreign(number) from None

    def _foreign(self, number: int) -> ConfigError:
        return ConfigError(
            f"{self._path} is not the output of a batch: line {number} is something else. Name another file."
        )


def make_line(line: NumberedLine, status: int, body: bytes, error: BatchError | None = None) -> BatchLine:
    """Return the answer to a line."""
    return BatchLine(line.id, line.custom_id, BatchResponse(status, line.id, msgspec.Raw(body)), error)
