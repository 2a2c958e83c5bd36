from __future__ import annotations

import threading
import time

import httpx
from server_process import ServerProcess, serve_fake


class Asking(threading.Thread):
    """A request in the background."""

    def __init__(self, server: ServerProcess, prompt: str, **fields: object) -> None:
        super().__init__()
        self.url = f"{server.url}/v1/completions"
        self.body = {"prompt": prompt, "max_tokens": 300, "temperature": 0, **fields}
        self.response: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.response = httpx.post(self.url, json=self.body, timeout=60.0)

    def result(self) -> httpx.Response:
        self.join()
        assert self.response is not None
        return self.response


def health(server: ServerProcess) -> int:
    try:
        return httpx.get(f"{server.url}/health", timeout=5.0).status_code
    except httpx.TransportError:
        return 0


def test_a_failed_engine_tells_those_who_wait_and_ends_the_process() -> None:
    with serve_fake("--step-seconds", "0.02") as server:
        waiting, streaming = Asking(server, "a" * 200), Asking(server, "b" * 200, stream=True)
        server.until(lambda: server.metric("vllm:num_requests_running") == 2)
        begun = server.metric("vllm:generation_tokens_total") + 12  # so both have some: a prompt takes four steps
        server.until(lambda: server.metric("vllm:generation_tokens_total") >= begun)
        failed = time.monotonic()
        crashing = Asking(server, "CRASH")
        server.until(lambda: health(server) != 200)
        assert time.monotonic() - failed < 5
        assert [waiting.result().status_code, crashing.result().status_code] == [503, 503]
        assert "retry-after" in waiting.result().headers
        events = streaming.result().text.split("\n\n")
        assert '"error"' in events[-3]
        assert events[-2] == "data: [DONE]"
        assert "injected" not in waiting.result().text + streaming.result().text
        assert server.process.wait(20) == 1


def test_a_step_that_hangs_is_noticed_and_told() -> None:
    with serve_fake("--engine-hang-timeout", "4.5") as server:
        hanging = Asking(server, "HANG")
        began = time.monotonic()
        server.until(lambda: health(server) == 503)
        assert time.monotonic() - began < 5
        waiting = Asking(server, "waits in vain")
        assert [hanging.result().status_code, waiting.result().status_code] == [503, 503]
        assert server.process.wait(20) == 1
        assert "hangs" in server.log()


def test_a_request_that_makes_steps_fail_costs_nobody_else() -> None:
    with serve_fake() as server:
        assert server.complete("fine", max_tokens=30).json()["choices"][0]["text"] == "fine"
        assert server.complete("BROKEN", max_tokens=30).status_code == 500
        assert server.complete("still fine", max_tokens=30).json()["choices"][0]["text"] == "still fine"
        assert server.is_idle()
