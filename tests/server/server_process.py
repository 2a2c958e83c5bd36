"""A real server in a process of its own, on a free port of this machine, for tests to talk to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

TINY_LLAMA = Path(__file__).parent.parent / "data" / "tiny" / "llama"
_START_SECONDS = 60.0
_RUNNING_ON = re.compile(r"running on https?://[\d.]+:(\d+)")


class ServerProcess:
    """Starts the server and waits until it answers; ends it with the `with` block.

    Args:
        command: what to run after `python`; it must log the address that it serves on.
    """

    def __init__(self, *command: str, env: Mapping[str, str] | None = None) -> None:
        self._lines: list[str] = []
        self.port = 0
        self._found = threading.Event()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, *command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._found.wait(_START_SECONDS), self.log()
        assert self.port, self.log()
        self.client = httpx.Client(base_url=self.url, timeout=60.0)
        self.until(lambda: self.client.get("/health").status_code == 200)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return "".join(self._lines)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def until(self, condition: Any, seconds: float = 20.0) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited {seconds} s in vain\n{self.log()[-4000:]}"
            time.sleep(0.01)

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **fields})

    def chat(self, text: str, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return self.client.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, **fields})

    def metric(self, name: str) -> float:
        """Return the sum of a metric's series."""
        lines = self.client.get("/metrics").text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{re.escape(name)}[{{ ]", line)]
        assert values, f"no metric {name}"
        return sum(values)

    def is_idle(self) -> bool:
        """Whether no request runs or waits, and none holds memory."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return all(self.metric(name) == 0 for name in names)

    def memory_bytes(self) -> int:
        """Anonymous memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert match
        return int(match[1]) * 1024

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            match = _RUNNING_ON.search(line)
            if match:
                self.port = int(match[1])
                self._found.set()
        self._found.set()


def serve(model: Path | str, *flags: str, env: Mapping[str, str] | None = None) -> ServerProcess:
    """Start `octavo serve`."""
    return ServerProcess("-m", "octavo", "serve", str(model), "--port", "0", *flags, env=env)


def serve_fake(*flags: str) -> ServerProcess:
    """Start a server whose model says its prompt again: see fake_server.py."""
    return ServerProcess(str(Path(__file__).parent / "fake_server.py"), *flags)


def stream_texts(response: httpx.Response) -> Iterator[str]:
    """Yield the text of each event of a streamed completion; the stream must end with [DONE]."""
    data = None
    for line in response.iter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            break
        event = json.loads(data)
        assert "error" not in event, event
        for choice in event["choices"]:
            yield choice["text"]
    assert data == "[DONE]"
