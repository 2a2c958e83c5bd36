from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from server_process import ServerProcess, serve_fake, stream_texts

NUM_STREAMS = 64
LONG = 2000
LONG_SECONDS = LONG * 0.002
"""What a prompt of so many characters takes the echo server at least."""


def read_stream(server: ServerProcess, prompt: str, *, max_events: int | None = None) -> str:
    """Return the text of a stream; leave it after some events, if told to."""
    body = {"prompt": prompt, "max_tokens": len(prompt) + 1, "temperature": 0, "stream": True}
    texts = []
    with (
        httpx.Client(timeout=60.0) as client,
        client.stream("POST", f"{server.url}/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200
        for text in stream_texts(response):
            texts.append(text)
            if max_events is not None and len(texts) >= max_events:
                break
    return "".join(texts)


def read_until_cut_off(server: ServerProcess, prompt: str) -> None:
    with contextlib.suppress(httpx.TransportError, AssertionError):
        read_stream(server, prompt)


def test_streams_are_right_beside_dropped_ones_and_never_hold_foreign_text(echo_server: ServerProcess) -> None:
    chosen = random.Random(5)
    dropped = set(chosen.sample(range(NUM_STREAMS), NUM_STREAMS // 3))
    prompts = [f"<{index:02}>" * chosen.randint(10, 60) for index in range(NUM_STREAMS)]

    def run(index: int) -> str:
        return read_stream(echo_server, prompts[index], max_events=chosen.randint(1, 5) if index in dropped else None)

    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        answers = list(threads.map(run, range(NUM_STREAMS)))
    for index, answer in enumerate(answers):
        if index in dropped:
            assert prompts[index].startswith(answer)
        else:
            assert answer == prompts[index]
    echo_server.until(echo_server.is_idle)


@pytest.mark.parametrize("num_events", [1, 5])
def test_a_dropped_stream_ends_its_request(echo_server: ServerProcess, num_events: int) -> None:
    read_stream(echo_server, "x" * LONG, max_events=num_events)
    echo_server.until(echo_server.is_idle, seconds=LONG_SECONDS / 2)


def test_a_client_that_leaves_before_its_whole_answer_ends_the_request(echo_server: ServerProcess) -> None:
    body = {"prompt": "x" * LONG, "max_tokens": LONG}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{echo_server.url}/v1/completions", json=body, timeout=0.3)
    echo_server.until(echo_server.is_idle, seconds=LONG_SECONDS / 2)


@pytest.mark.slow
def test_blocks_of_a_dropped_request_are_free_within_half_a_second(echo_server: ServerProcess) -> None:
    waits = []
    for _ in range(10):
        read_stream(echo_server, "x" * LONG, max_events=2)
        left = time.monotonic()
        echo_server.until(echo_server.is_idle)
        waits.append(time.monotonic() - left)
    print(waits)
    assert sorted(waits)[5] < 0.5


def test_requests_with_one_id_get_their_own_answers(echo_server: ServerProcess) -> None:
    def ask(index: int) -> httpx.Response:
        return httpx.post(
            f"{echo_server.url}/v1/completions",
            json={"prompt": f"mine is {index}", "max_tokens": 40, "temperature": 0},
            headers={"X-Request-Id": "same"},
            timeout=60.0,
        )

    with ThreadPoolExecutor(50) as threads:
        responses = list(threads.map(ask, range(50)))
    assert [response.json()["choices"][0]["text"] for response in responses] == [f"mine is {i}" for i in range(50)]
    assert {response.headers["x-request-id"] for response in responses} == {"same"}
    assert {response.json()["id"] for response in responses} == {"cmpl-same"}


def test_a_client_that_reads_slowly_gets_all_of_it(echo_server: ServerProcess) -> None:
    prompt = "".join(chr(97 + index % 26) for index in range(1500))
    body = {"prompt": prompt, "max_tokens": 1500, "temperature": 0, "stream": True}
    with (
        httpx.Client(timeout=60.0) as client,
        client.stream("POST", f"{echo_server.url}/v1/completions", json=body) as response,
    ):
        texts = []
        for text in stream_texts(response):
            texts.append(text)
            if len(texts) == 1:
                time.sleep(1.0)
    assert "".join(texts) == prompt


def test_a_signal_lets_running_requests_end_and_refuses_new_ones() -> None:
    with serve_fake("--step-seconds", "0.005") as server:
        answers: list[str] = []
        reader = threading.Thread(target=lambda: answers.append(read_stream(server, "y" * 200)))
        reader.start()
        server.until(lambda: server.metric("vllm:num_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: "shutting down" in server.log())
        time.sleep(0.3)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
        reader.join()
        assert answers == ["y" * 200]
        assert server.process.wait(10) == 0


def test_the_end_does_not_wait_longer_than_it_may() -> None:
    with serve_fake("--step-seconds", "0.05", "--shutdown-timeout", "0.5") as server:
        failures: list[BaseException] = []

        def read() -> None:
            try:
                read_stream(server, "y" * 390)
            except BaseException as error:
                failures.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        server.until(lambda: server.metric("vllm:num_requests_running") == 1)
        signalled = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        assert time.monotonic() - signalled < 8
        reader.join()
        assert "the engine is not running" in str(failures[0])


def test_a_second_signal_ends_the_process_at_once() -> None:
    with serve_fake("--step-seconds", "0.05", "--shutdown-timeout", "60") as server:
        reader = threading.Thread(target=read_until_cut_off, args=(server, "y" * 390))
        reader.start()
        server.until(lambda: server.metric("vllm:num_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: "shutting down" in server.log())
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 128 + signal.SIGTERM
        reader.join()
