"""One streamed request to an OpenAI-compatible server, timed: asyncio streams alone, so that the client stays light.

The clock of a request starts when its connection is open and it is sent.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from octavo.errors import ConfigError

_MAX_LINE_BYTES = 1 << 24
_MAX_ERROR_CHARS = 300
_MAX_TOKENS = 1 << 32
"""No server counts more in one request."""
_TEXT_KEYS = ("content", "reasoning", "reasoning_content", "refusal", "tool_calls")
"""Where a chat's delta has what the model wrote: the answer, its thought under both names, or calls of tools."""
_WAYS_OUT = {401: "; give its --api-key", 404: "; --base-url is the address alone, without /v1"}
"""Of statuses that say what is wrong with the command."""


@dataclass(slots=True)
class ServedRecord:
    """What came of one request.

    Units: seconds of one monotonic clock.
    """

    sent_at: float = 0.0
    text_at: list[float] = field(default_factory=list)
    """When each piece of what the model wrote arrived."""
    ended_at: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    """As the server counts them; else the pieces of text."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    Raises: `ConfigError` for a URL that is none, or that has a port that is none.
    """

    base_url: str
    endpoint: str
    headers: Mapping[str, str]

    def __post_init__(self) -> None:
        try:
            url = urlsplit(self.base_url)
            port = url.port
        except ValueError:
            url, port = urlsplit(""), 0
        if port == 0:
            raise ConfigError(f"base_url must have a host and, if at all, a port in [1, 65535], got {self.base_url!r}.")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"base_url must begin with http:// or https:// and a host, got {self.base_url!r}.")

    @property
    def is_chat(self) -> bool:
        """Whether the endpoint takes messages."""
        return self.endpoint.rstrip("/").endswith("/chat/completions")

    def head(self, method: str, path: str, length: int) -> bytes:
        """Return the head of a request: UTF-8, as servers read keys, or the bytes that the system gave."""
        url = urlsplit(self.base_url)
        lines = [
            f"{method} {url.path.rstrip('/')}{path} HTTP/1.1",
            f"Host: {url.netloc.rpartition('@')[2]}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {length}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection for one request."""
        url = urlsplit(self.base_url)
        secured = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if secured else 80)
        reader, writer = await asyncio.open_connection(url.hostname, port, ssl=secured, limit=_MAX_LINE_BYTES)
        try:
            yield reader, writer
        finally:
            writer.close()


async def send(target: Target, body: Mapping[str, Any]) -> ServedRecord:
    """Send one request that asks for a stream; return what came. Failures are part of that."""
    record = ServedRecord()
    try:
        raw = json.dumps(body).encode()
        async with target.connect() as (reader, writer):
            record.sent_at = time.monotonic()
            writer.write(target.head("POST", target.endpoint, len(raw)) + raw)
            await _read_events(reader, record)
    except (OSError, EOFError, ValueError, RecursionError, asyncio.LimitOverrunError) as error:
        record.error = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
    record.ended_at = time.monotonic()
    record.num_output_tokens = record.num_output_tokens or len(record.text_at)
    return record


async def get_json(target: Target, path: str) -> Any:
    """Return what a GET gives. Raises: OSError, EOFError, ValueError, RecursionError, `asyncio.LimitOverrunError`."""
    async with target.connect() as (reader, writer):
        writer.write(target.head("GET", path, 0))
        status, lines = await _read_head(reader)
        text = b"".join([line async for line in lines])
        if status != 200:
            raise ValueError(f"GET {path} was answered with status {status}{_WAYS_OUT.get(status, '')}")
        return json.loads(text)


async def _read_events(reader: asyncio.StreamReader, record: ServedRecord) -> None:
    status, lines = await _read_head(reader)
    if status != 200:
        text = b"".join([line async for line in lines])
        record.error = f"status {status}: {text.decode('utf-8', 'replace').strip()}"[:_MAX_ERROR_CHARS]
        return
    is_done = False
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            is_done = True
            break
        try:
            _take_event(json.loads(data), record)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            record.error = f"an event that is not of this API: {data.decode('utf-8', 'replace')}"[:_MAX_ERROR_CHARS]
            return
    if not is_done and record.error is None:
        record.error = "the stream ended before [DONE]"
    if not record.text_at and record.error is None:
        record.error = "the answer has no text"


def _take_event(event: Mapping[str, Any], record: ServedRecord) -> None:
    if event.get("error"):  # some servers say with every event that there is none
        record.error = str(event["error"])[:_MAX_ERROR_CHARS]
        return
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(key) for key in _TEXT_KEYS):
            record.text_at.append(time.monotonic())
    usage = event.get("usage")
    if usage:
        record.num_prompt_tokens = _count(usage["prompt_tokens"])
        record.num_output_tokens = _count(usage["completion_tokens"])


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_TOKENS:
        raise ValueError("not a number of tokens")
    return value


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, AsyncIterator[bytes]]:
    """Return the status of an answer, and its lines."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].partition(" ")[2][:3])
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    return status, _lines(_chunks(reader) if is_chunked else _rest(reader))


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = int((await reader.readline()).split(b";")[0] or b"0", 16)
        if size == 0:
            return
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(1 << 16):
        yield data


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cut into lines what comes in other pieces."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
