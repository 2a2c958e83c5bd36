"""`octavo bench serve` against a server of this file's own: what it sends, and what it makes of what comes back."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from octavo.bench.serve import Load, parse_goodput
from octavo.bench.serve_client import ServedRecord, Target
from octavo.bench.serve_figures import most_at_once, serve_figures
from octavo.cli.main import main
from octavo.errors import ConfigError

TINY_LLAMA = str(Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama")


class FakeServer(ThreadingHTTPServer):
    """Streams as many words as a request asks for; fails those whose prompt has "fail" in it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models = json.dumps({"data": [{"id": "first"}, {"id": "second"}]})
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_open = 0
        self.most_open = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        del args

    def do_GET(self) -> None:
        body = self.server.models.encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.server.num_open += 1
            self.server.most_open = max(self.server.most_open, self.server.num_open)
        try:
            self.answer(body)
        finally:
            with self.server.lock:
                self.server.num_open -= 1

    def answer(self, body: dict[str, Any]) -> None:
        kind = str(body.get("prompt") or body["messages"][0]["content"])
        if kind == "fail":
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "no"}}')
            self.close_connection = True
            return
        if kind == "no head":
            self.wfile.write(b"oops\r\n\r\n")
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if kind.startswith('[{"'):
            for event in json.loads(kind):
                self.send_event(event)
            self.send_chunk(b"data: [DONE]\n\n")
            self.send_chunk(b"")
            return
        for index in range(body["max_tokens"]):
            if kind == "break" and index == 1:
                break
            word = {"delta": {"content": "word "}} if "messages" in body else {"text": "word "}
            self.send_event({"choices": [{"index": 0, **word}]})
            time.sleep(0.002)
        else:
            usage = {"prompt_tokens": 7, "completion_tokens": body["max_tokens"]}
            self.send_event({"choices": [], "usage": usage})
            self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")

    def send_event(self, event: dict[str, Any]) -> None:
        """In two pieces, cut in the middle of a line."""
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        self.send_chunk(data[:9])
        self.send_chunk(data[9:])

    def send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(fake: FakeServer, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "serve", "--base-url", fake.url, "--json", *arguments])


def run_json(fake: FakeServer, *arguments: str) -> dict[str, Any]:
    result = run(fake, *arguments)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return document


def test_every_request_is_sent_and_counted(fake: FakeServer) -> None:
    document = run_json(fake, "--num-prompts", "5", "--output-len", "4", "--input-len", "10")
    assert (document["num_requests"], document["num_failed"]) == (5, 0)
    assert (document["num_prompt_tokens"], document["num_output_tokens"]) == (35, 20)
    assert {body["model"] for body in fake.bodies} == {"first"}
    assert all(len(body["prompt"].split()) == 10 for body in fake.bodies)
    assert document["output_tokens_per_s"] == pytest.approx(20 / document["total_s"])
    assert document["ttft_ms"]["p50"] <= document["e2el_ms"]["p50"]
    assert document["goodput_requests_per_s"] is None
    assert document["recipe"]["workload"]["base_url"] == fake.url


def test_the_table_calls_the_tokens_of_all_requests_a_total(fake: FakeServer) -> None:
    assert "\nprompt, output tokens in all  " in run(fake, "--num-prompts", "3").stdout


def test_a_limit_of_requests_at_once_is_kept(fake: FakeServer) -> None:
    document = run_json(fake, "--num-prompts", "12", "--output-len", "5", "--max-concurrency", "3")
    assert document["max_concurrent_requests"] <= 3
    assert fake.most_open <= 4  # one that has said its last word may still be open


@pytest.mark.parametrize("tokenizer", [(), ("--tokenizer", TINY_LLAMA)], ids=["words", "ids"])
def test_warm_ups_come_first_with_prompts_of_their_own(fake: FakeServer, tokenizer: tuple[str, ...]) -> None:
    document = run_json(fake, "--num-prompts", "4", "--output-len", "2", "--num-warmups", "3", *tokenizer)
    assert document["num_requests"] == 4
    prompts = [str(body["prompt"]) for body in fake.bodies]
    assert len(prompts) == len(set(prompts)) == 7


def test_chats_get_messages(fake: FakeServer) -> None:
    document = run_json(fake, "--backend", "openai-chat", "--num-prompts", "2", "--output-len", "3")
    assert document["num_output_tokens"] == 6
    assert [message["role"] for message in fake.bodies[0]["messages"]] == ["user"]


def test_a_tokenizer_gives_prompts_of_exactly_so_many_ids(fake: FakeServer) -> None:
    run_json(fake, "--tokenizer", TINY_LLAMA, "--num-prompts", "2", "--input-len", "9", "--output-len", "1")
    assert all(len(body["prompt"]) == 9 and isinstance(body["prompt"][0], int) for body in fake.bodies)


def test_flags_become_fields_of_the_body(fake: FakeServer) -> None:
    flags = ("--ignore-eos", "--temperature", "0.5", "--model", "m", "--extra-body", '{"top_k": 3}')
    run_json(fake, "--num-prompts", "1", "--output-len", "1", "--api-key", "secret", *flags)
    (body,) = fake.bodies
    assert (body["ignore_eos"], body["temperature"], body["model"], body["top_k"]) == (True, 0.5, "m", 3)
    assert fake.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize("key", ["ключ".encode(), b"\xfe"], ids=["utf-8", "other bytes"])
def test_a_key_is_sent_as_servers_read_it(fake: FakeServer, key: bytes) -> None:
    run_json(fake, "--num-prompts", "1", "--output-len", "1", "--api-key", os.fsdecode(key))
    assert fake.headers[0]["authorization"].encode("latin-1") == b"Bearer " + key


@pytest.mark.parametrize(
    ("own", "openai", "sent"),
    [("a\n", "b", "Bearer a"), (None, "b", "Bearer b"), ("", "b", "Bearer b"), (None, None, None)],
)
def test_the_key_comes_from_the_environment(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, own: str | None, openai: str | None, sent: str | None
) -> None:
    for name, value in (("OCTAVO_API_KEY", own), ("OPENAI_API_KEY", openai)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    run_json(fake, "--num-prompts", "1", "--output-len", "1")
    assert fake.headers[0].get("authorization") == sent


def test_failed_requests_are_told_apart(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in ("good", "fail", "break", "good")))
    document = run_json(fake, "--dataset-name", "custom", "--dataset-path", str(path), "--output-len", "3")
    assert (document["num_requests"], document["num_failed"]) == (2, 2)
    assert any("status 400" in error for error in document["errors"])
    assert any("before [DONE]" in error for error in document["errors"])


ODD_EVENTS: list[Any] = [
    5,
    "text",
    [],
    {"choices": 5},
    {"choices": [5]},
    {"choices": [{"delta": "x"}]},
    {"usage": {"prompt_tokens": 1}},
    {"usage": 5},
    {"usage": {"prompt_tokens": None, "completion_tokens": 1}},
    {"usage": {"prompt_tokens": "1", "completion_tokens": 1}},
    {"usage": {"prompt_tokens": 10**400, "completion_tokens": 10**400}},
    {"usage": {"prompt_tokens": True, "completion_tokens": True}},
]


def test_an_odd_event_fails_its_request_alone(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    prompts = [json.dumps([{"choices": [{"text": "a"}]}, event]) for event in ODD_EVENTS]
    prompts += ["no head", json.dumps([{"choices": []}]), "good"]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    document = run_json(fake, "--dataset-name", "custom", "--dataset-path", str(path), "--output-len", "3")
    assert (document["num_requests"], document["num_failed"]) == (1, len(ODD_EVENTS) + 2)
    assert any("not of this API: " in error for error in document["errors"])


def test_an_error_that_is_none_fails_nothing(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": json.dumps([{"choices": [{"text": "a"}], "error": None}])}) + "\n")
    document = run_json(fake, "--dataset-name", "custom", "--dataset-path", str(path))
    assert (document["num_requests"], document["num_failed"]) == (1, 0)


@pytest.mark.parametrize("key", ["content", "reasoning", "reasoning_content", "tool_calls"])
def test_whatever_a_model_writes_is_text(fake: FakeServer, tmp_path: Path, key: str) -> None:
    written = [{"function": {"arguments": "{"}}] if key == "tool_calls" else "word"
    deltas = [{"role": "assistant", "content": ""}, {key: written}, {key: written}, {"content": "end"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": json.dumps([{"choices": [{"delta": delta}]} for delta in deltas])}) + "\n")
    document = run_json(fake, "--backend", "openai-chat", "--dataset-name", "custom", "--dataset-path", str(path))
    assert (document["num_requests"], document["num_output_tokens"]) == (1, 3)


def test_a_run_without_any_answer_fails(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fail"}\n')
    result = run(fake, "--dataset-name", "custom", "--dataset-path", str(path))
    assert result.exit_code == 1
    assert "no request was served" in result.stderr


def test_a_server_that_is_not_there_is_said_to_be_missing() -> None:
    result = CliRunner().invoke(main, ["bench", "serve", "--base-url", "http://127.0.0.1:1", "--num-prompts", "1"])
    assert result.exit_code == 1
    assert "no server answers at http://127.0.0.1:1 (" in result.stderr


def test_a_base_url_that_ends_in_v1_is_told_to_go_without(fake: FakeServer) -> None:
    result = CliRunner().invoke(main, ["bench", "serve", "--base-url", f"{fake.url}/v1", "--num-prompts", "1"])
    assert result.exit_code == 1
    assert "--base-url is the address alone, without /v1" in result.stderr


@pytest.mark.parametrize("models", ["", "[]", '{"data": []}', "[" * 200_000], ids=["empty", "list", "none", "deep"])
def test_a_server_that_does_not_say_its_model_is_told_of(fake: FakeServer, models: str) -> None:
    fake.models = models
    result = run(fake, "--num-prompts", "1")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert f"{fake.url} does not say which model it serves" in result.stderr


def make_record(sent: float, *texts: float, tokens: int = 0) -> ServedRecord:
    return ServedRecord(sent, list(texts), texts[-1], num_prompt_tokens=3, num_output_tokens=tokens or len(texts))


def test_figures_are_those_of_the_records() -> None:
    records = [make_record(0.0, 0.1, 0.2, 0.4), make_record(1.0, 1.3, tokens=1), ServedRecord(0.0, [], 2.0, error="no")]
    figures = serve_figures(records, 2.0, limits_ms={"ttft": 200.0, "e2el": 400.0}, client_cpu_s=0.0)
    assert (figures.num_requests, figures.num_failed, figures.num_output_tokens) == (2, 1, 4)
    assert figures.ttft_ms is not None
    assert figures.ttft_ms.p50 == pytest.approx(200.0)
    assert figures.mean_tpot_ms == pytest.approx(150.0)
    assert figures.mean_itl_ms == pytest.approx(150.0)
    assert figures.goodput_requests_per_s == pytest.approx(0.5)


def test_requests_that_follow_each_other_are_not_at_once() -> None:
    assert most_at_once([make_record(0.0, 1.0), make_record(1.0, 2.0)]) == 1
    assert most_at_once([make_record(0.0, 1.5), make_record(1.0, 2.0)]) == 2


def test_arrivals_have_the_rate_that_was_asked_for() -> None:
    times = Load(request_rate=10.0, seed=1).arrivals(2_000)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(200.0, rel=0.1)
    assert Load().arrivals(3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("text", ["ttft", "speed:5", "ttft:x", "tpot:-1"])
def test_a_limit_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="goodput must be like"):
        parse_goodput([text])


@pytest.mark.parametrize("load", [{"request_rate": 0.0}, {"burstiness": -1.0}, {"max_concurrency": 0}], ids=str)
def test_a_load_that_means_nothing_is_refused(load: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(load))):
        Load(**load)


def test_a_url_needs_a_scheme_and_a_host() -> None:
    with pytest.raises(ConfigError, match="base_url"):
        Target("localhost:8000", "/v1/completions", {})


@pytest.mark.parametrize("port", ["99999", "0", "x", "-1"])
def test_a_url_needs_a_port_that_there_is(port: str) -> None:
    with pytest.raises(ConfigError, match=rf"base_url .* a port in \[1, 65535\], got 'http://localhost:{port}'"):
        Target(f"http://localhost:{port}", "/v1/completions", {})
