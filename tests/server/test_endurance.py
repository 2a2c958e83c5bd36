from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from server_process import TINY_LLAMA, ServerProcess, serve

NUM_CONNECTIONS = 8
NUM_ROUNDS, REQUESTS_PER_ROUND = 20, 2_000
WARM_ROUNDS = 10
"""Until the logs and windows that keep the latest of everything are full."""
MAX_BYTES_PER_REQUEST = 10


async def send_many(port: int, first: int, count: int) -> None:
    """Send one-token requests over one connection, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for index in range(first, first + count):
        stream = index % 2 == 0
        body = json.dumps({"prompt": f"number {index}", "max_tokens": 1, "stream": stream}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        if stream:
            await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
    writer.close()
    await writer.wait_closed()


def send_round(server: ServerProcess, number: int) -> None:
    async def send() -> None:
        each = REQUESTS_PER_ROUND // NUM_CONNECTIONS
        starts = (number * REQUESTS_PER_ROUND + index * each for index in range(NUM_CONNECTIONS))
        await asyncio.gather(*(send_many(server.port, start, each) for start in starts))

    asyncio.run(send())


def num_files_and_threads(server: ServerProcess) -> tuple[int, int]:
    process = Path(f"/proc/{server.pid}")
    return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


@pytest.mark.slow
def test_many_requests_leave_nothing_behind() -> None:
    with serve(TINY_LLAMA, "--kv-cache-memory-bytes", "4M", "--disable-uvicorn-access-log") as server:
        memory, others = [], []
        for number in range(NUM_ROUNDS):
            send_round(server, number)
            server.until(server.is_idle)
            memory.append(server.memory_bytes())
            others.append(num_files_and_threads(server))
        warm = memory[WARM_ROUNDS - 1 :]
        slope = (min(warm[-2:]) - min(warm[:2])) / (REQUESTS_PER_ROUND * (len(warm) - 2))
        print(memory, others, slope)
        assert slope <= MAX_BYTES_PER_REQUEST, memory
        assert others[-1] == others[WARM_ROUNDS], others


@pytest.mark.slow
def test_many_completions_of_one_prompt_do_not_stop_the_loop() -> None:
    with serve(TINY_LLAMA) as server, ThreadPoolExecutor(8) as threads:

        def ask(_: int) -> int:
            body = {"prompt": "a", "n": 4096, "max_tokens": 1}
            return httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).status_code

        asked = [threads.submit(ask, index) for index in range(8)]
        slowest = 0.0
        while not all(entry.done() for entry in asked):
            started = time.monotonic()
            assert server.client.get("/version").status_code == 200
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.01)
        print(slowest)
        assert {entry.result() for entry in asked} <= {200, 503}
        server.until(server.is_idle)
