from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from server_process import TINY_LLAMA, ServerProcess, serve, serve_fake

LOOP = "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def trusting() -> Iterator[ServerProcess]:
    """Runs the templates of requests, for a second each."""
    template = "{% for m in messages %}{{ m.content }};{% endfor %}"
    flags = ("--trust-request-chat-template", "--chat-template-timeout", "1", "--chat-template", template)
    with serve(TINY_LLAMA, *flags, "--log-format", "json", "--enable-log-requests") as process:
        yield process


@pytest.fixture(scope="module")
def strict() -> Iterator[ServerProcess]:
    """Runs two requests at a time and lets two wait, half a second each, at 20 ms a token."""
    limits = ("--max-num-queued-reqs", "2", "--request-timeout", "0.5", "--max-body-bytes", "1000")
    with serve_fake("--step-seconds", "0.02", "--max-num-seqs", "2", *limits) as process:
        yield process


def test_a_template_from_the_command_line_is_used(trusting: ServerProcess) -> None:
    messages = [{"role": "user", "content": "hi"}]
    counted = trusting.client.post("/tokenize", json={"messages": messages, "return_token_strs": True}).json()
    assert "".join(counted["token_strs"]) == "hi;"


@pytest.mark.parametrize(
    "template", [LOOP, "{{ 'a' * 10**10 }}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception('x') }}"]
)
def test_a_trusted_template_harms_its_own_request_alone(trusting: ServerProcess, template: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        hostile = [threads.submit(trusting.chat, "a", chat_template=template) for _ in range(3)]
        time.sleep(0.1)
        assert trusting.chat("a", max_tokens=1).status_code == 200
        assert {entry.result().status_code for entry in hostile} <= {400, 503}
    assert trusting.chat("a", max_tokens=1, chat_template="{{ messages[0].content }}").status_code == 200


def test_the_log_is_json_with_request_ids_and_without_texts(trusting: ServerProcess) -> None:
    headers = {"x-request-id": "an-id-of-mine"}
    body = {"prompt": "a secret text", "max_tokens": 1}
    trusting.client.post("/v1/completions", json=body, headers=headers)

    def lines() -> list[str]:
        return [line for line in trusting.log().splitlines() if "an-id-of-mine" in line]

    trusting.until(lambda: len(lines()) == 2)
    assert all(line.startswith("{") for line in lines())
    assert "secret" not in trusting.log()
    access = json.loads(lines()[-1])
    assert (access["method"], access["path"], access["status"]) == ("POST", "/v1/completions", 200)
    assert access["seconds"] > 0


def test_the_log_begins_with_what_is_served(trusting: ServerProcess) -> None:
    assert json.loads(trusting.log().splitlines()[0])["message"] == f"loading {TINY_LLAMA}"
    (line,) = [line for line in trusting.log().splitlines() if '"model ' in line]
    assert "context of 512 tokens, KV cache of up to " in line
    assert "form of calls: not known, of thoughts: none" in line


def test_a_parser_for_a_template_without_tools_is_warned_of() -> None:
    with serve(TINY_LLAMA, "--tool-call-parser", "hermes", "--chat-template", "{{ messages }}") as process:
        assert "the model will not see those of requests" in process.log()


def test_a_request_past_its_deadline_gets_504(strict: ServerProcess) -> None:
    response = strict.complete("a" * 100, max_tokens=100)
    assert response.status_code == 504
    strict.until(strict.is_idle)


def test_a_stream_past_its_deadline_ends_with_an_error(strict: ServerProcess) -> None:
    events = strict.complete("a" * 100, max_tokens=100, stream=True).text.split("\n\n")
    assert len(events) > 4
    assert '"code":504' in events[-3]
    assert events[-2] == "data: [DONE]"


def test_a_full_queue_refuses_and_says_when_to_come_back(strict: ServerProcess) -> None:
    def ask(_: int) -> httpx.Response:
        return httpx.post(f"{strict.url}/v1/completions", json={"prompt": "b" * 4, "max_tokens": 20}, timeout=30)

    with ThreadPoolExecutor(12) as threads:
        responses = list(threads.map(ask, range(12)))
    refused = [response for response in responses if response.status_code == 503]
    assert refused
    assert all(response.headers["retry-after"] == "1" for response in refused)
    assert sum(response.status_code == 200 for response in responses) >= 2
    assert strict.metric("vllm:admission_rejections_total") == len(refused)
    strict.until(strict.is_idle)
    assert ask(0).status_code == 200


def test_the_limit_of_a_body_is_an_option(strict: ServerProcess) -> None:
    assert strict.complete("a" * 1000).status_code == 413


def test_a_port_in_use_ends_the_start_with_a_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "octavo", "serve", str(TINY_LLAMA), "--port", str(taken.getsockname()[1])]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode not in (0, None)
    assert "another program listens there" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_failed_engine_is_started_again_if_told_so() -> None:
    with serve_fake("--on-engine-failure", "restart") as server:
        time.sleep(11)
        old = server.port
        assert server.complete("CRASH").status_code == 503
        server.until(lambda: server.port != old, seconds=60)
        server.client.base_url = server.url  # type: ignore[assignment]
        server.until(lambda: server.client.get("/health").status_code == 200)
        assert server.complete("again", max_tokens=20).json()["choices"][0]["text"] == "again"
