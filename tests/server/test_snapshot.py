"""What a server tells of its engine, to whoever draws it."""

from __future__ import annotations

import threading

import httpx
from click.testing import CliRunner
from server_process import ServerProcess

from octavo.cli.main import main
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
