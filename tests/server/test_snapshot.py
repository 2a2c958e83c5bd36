"""What a server tells of its engine, to whoever draws it."""

from __future__ import annotations

import threading

import httpx
from click.testing import CliRunner
from server_process import ServerProcess

from octavo.cli.main import main
from octavo.frontend.engine_metrics import GAPS_KEPT
from octavo.observe.snapshot import EngineSnapshot


def take_snapshot(server: ServerProcess) -> EngineSnapshot:
    return EngineSnapshot.from_json(httpx.get(f"{server.url}/octavo/snapshot").raise_for_status().json())


def test_a_snapshot_shows_a_running_request_and_its_blocks(echo_server: ServerProcess) -> None:
    stream = threading.Thread(target=echo_server.complete, args=("a" * 400,), kwargs={"max_tokens": 401})
    stream.start()
    shown: list[EngineSnapshot] = []

    def runs() -> bool:
        shown.append(take_snapshot(echo_server))
        return len(shown[-1].running) == 1 and bool(shown[-1].cache_groups[0].used)

    echo_server.until(runs)
    stream.join()
    (request,) = shown[-1].running
    assert request.num_prompt_tokens == 400
    assert {owner for block in shown[-1].cache_groups[0].used for owner in block.owners} == {0}


def test_top_draws_what_a_server_tells(echo_server: ServerProcess) -> None:
    done = CliRunner().invoke(main, ["top", echo_server.url, "--once"])
    assert done.exit_code == 0, done.output
    assert "blocks" in done.output


def test_requests_have_the_ids_that_clients_gave_them(echo_server: ServerProcess) -> None:
    body = {"prompt": ["a" * 300, "b" * 300], "max_tokens": 300, "request_id": "chosen by the client", "stream": True}
    with httpx.stream("POST", f"{echo_server.url}/v1/completions", json=body) as response:
        next(lines := response.iter_lines())
        running = take_snapshot(echo_server).running
        lines.close()
    assert [request.request_id for request in running] == ["chosen by the client"] * 2
    assert len({request.arrival for request in running}) == 2, "what tells them apart"


def test_a_snapshot_tells_how_long_callers_waited(echo_server: ServerProcess) -> None:
    before = take_snapshot(echo_server).latencies
    echo_server.complete("a" * 20, max_tokens=20)
    after = take_snapshot(echo_server).latencies
    assert after.ttft.num_values == before.ttft.num_values + 1
    assert after.itl.num_values == min(before.itl.num_values + 19, GAPS_KEPT)
    assert 0 < after.itl.p50 <= after.itl.p90 <= after.itl.p99 <= after.e2e.p99
