from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner, Result
from face_fakes import make_llm

from octavo import LLM, RequestOutput, SamplingParams
from octavo.bench.report import Report
from octavo.cli.main import main
from octavo.errors import ConfigError
from octavo.observe.snapshot import (
    SNAPSHOT_SCHEMA,
    BlockView,
    CacheGroupView,
    EngineSnapshot,
    KVCacheStats,
    PhaseSeconds,
    RequestView,
    SecondView,
)

pytest.importorskip("rich")

from rich.console import Console

from octavo.explain.top_view import top_screen  # needs rich
from octavo.explain.watching import fetch_snapshot, snapshot_url, watch_server, watching

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama"


def make_request(request_id: str, seat: int | None, blocks: tuple[int, ...] = (), **changes: object) -> RequestView:
    request = RequestView(
        request_id=request_id,
        completion=0,
        num_prompt_tokens=20,
        num_output_tokens=3,
        max_tokens=20,
        num_computed_tokens=22,
        num_cached_tokens=16,
        num_preemptions=0,
        seat=seat,
        waits_for=None if seat is not None else "seats",
        num_published_blocks=1,
        block_ids=(blocks,),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def make_snapshot(**changes: object) -> EngineSnapshot:
    """Two requests that share a block, one that waits, and two cached blocks."""
    stats = KVCacheStats(
        block_size=16,
        capacity_bytes=1 << 20,
        used_bytes=3 << 10,
        cached_bytes=2 << 10,
        num_used_blocks=3,
        num_cached_blocks=2,
        num_available_blocks=97,
        peak_used_blocks=5,
        num_shared_blocks=1,
        num_saved_tokens=16,
        num_empty_slots=12,
        waste=0.25,
        mean_waste=0.125,
        num_evictions=0,
        num_queried_tokens=40,
        num_hit_tokens=16,
        hit_rate=0.4,
    )
    seconds = (
        SecondView(3, 10, 100, 30, 20, 2, 1, 3, PhaseSeconds(0.1, 0.6, 0.2, 0.1)),
        SecondView(1, 10, 100, 60, 40, 2, 1, 3, PhaseSeconds(0.1, 0.6, 0.2, 0.1)),
    )
    snapshot = EngineSnapshot(
        schema=SNAPSHOT_SCHEMA,
        taken_at=1e9,
        num_steps=1234,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        max_model_len=1024,
        running=(make_request("a", 0, (0, 1)), make_request("b", 1, (0, 4))),
        waiting=(make_request("c", None),),
        cache_groups=(
            CacheGroupView(
                kind="full",
                block_bytes=1 << 10,
                num_blocks=100,
                used=(BlockView(0, 2, (0, 1), 16), BlockView(1, 1, (0,), 6), BlockView(4, 1, (1,), 6)),
                cached=(2, 5),
            ),
        ),
        kv_cache=stats,
        output_tokens_per_s=42.0,
        last_minute=seconds,
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def draw(snapshot: EngineSnapshot, width: int = 120, *, colour: bool = False) -> str:
    system: Literal["standard"] | None = "standard" if colour else None
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=colour, color_system=system)
    console.print(top_screen(snapshot, "here", width))
    return screen.getvalue()


def make_terminal(screen: io.StringIO) -> Console:
    return Console(file=screen, width=100, height=40, force_terminal=True, legacy_windows=False)


@contextmanager
def serving(body: str, status: int = 200) -> Iterator[tuple[str, list[str | None]]]:
    """A server that gives one answer to everything; yields its address and the keys it was shown."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            found = self.path == "/octavo/snapshot"
            self.send_response(status if found else 404)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", keys
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def top(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["top", *arguments])


def test_a_narrow_terminal_still_tells_why_requests_wait() -> None:
    assert "waits: seats" in draw(make_snapshot(), 80)


def test_the_screen_lists_who_runs_and_who_waits_and_why() -> None:
    lines = draw(make_snapshot()).splitlines()
    assert any("a  " in line and "seat 0" in line for line in lines)
    assert any("c  " in line and "waits: seats" in line for line in lines)
    assert "2 of 8 seats, 1 waiting   42 tokens/s   1,234 steps" in lines[0]


def test_the_block_map_marks_shared_cached_and_free_blocks() -> None:
    text = draw(make_snapshot())
    assert "│ ◆■▒·■▒ " in text
    assert "94 never used" in text
    assert "25.0% of the slots in use are empty" in text


def test_blocks_have_the_colour_of_their_request() -> None:
    coloured = draw(make_snapshot(), colour=True)
    cyan, green = "\x1b[36m■", "\x1b[32m■"
    assert coloured.count(cyan) == coloured.count(green) == 2, "once in the list, once in the map"


def test_many_blocks_become_one_sign_that_tells_the_most() -> None:
    used = tuple(BlockView(block_id, 1 + (block_id == 700), (0,), 16) for block_id in range(0, 5000, 2))
    group = replace(make_snapshot().cache_groups[0], used=used, cached=(), num_blocks=5000)
    text = draw(make_snapshot(cache_groups=(group,)), width=100)
    assert "7 blocks a sign" in text
    assert text.count("◆") == 2, "once in the map, once in the legend"


def test_shares_of_the_step_time_add_up_to_all_of_it() -> None:
    assert "schedule 10.0%  forward 60.0%  sample 20.0%  output 10.0%" in draw(make_snapshot())


def test_the_last_minute_is_drawn_to_the_scale_of_its_best_second() -> None:
    (line,) = [line for line in draw(make_snapshot()).splitlines() if "tokens/s  " in line and "│" in line]
    assert "▄ █  at most 60" in line


def test_a_long_queue_is_cut() -> None:
    waiting = tuple(make_request(str(index), None) for index in range(500))
    assert "and 488 more" in draw(make_snapshot(waiting=waiting))


@pytest.mark.parametrize("width", [30, 80, 200])
def test_an_idle_engine_is_drawn_at_any_width(width: int) -> None:
    group = replace(make_snapshot().cache_groups[0], used=(), cached=())
    empty = make_snapshot(running=(), waiting=(), cache_groups=(group,), last_minute=(), output_tokens_per_s=0.0)
    assert "0 of 8 seats" in " ".join(draw(empty, width).split())


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("localhost:8000", "http://localhost:8000/octavo/snapshot"),
        ("https://example.org/models/", "https://example.org/models/octavo/snapshot"),
        ("http://h/octavo/snapshot", "http://h/octavo/snapshot"),
    ],
    ids=["host and port", "path", "whole"],
)
def test_a_server_is_named_as_shortly_as_people_do(server: str, url: str) -> None:
    assert snapshot_url(server) == url


@pytest.mark.parametrize("server", ["file:///etc/passwd", "http://", "ftp://host"])
def test_what_is_no_address_of_a_server_is_refused(server: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        snapshot_url(server)


def test_top_prints_one_screen_where_stdout_is_no_terminal() -> None:
    with serving(json.dumps(make_snapshot().to_json())) as (address, keys):
        result = top(address, "--api-key", "secret\n")
    assert result.exit_code == 0
    assert "waits: seats" in result.stdout
    assert keys == ["Bearer secret"]


@pytest.mark.parametrize("key", ["ключ".encode(), b"\xfe"], ids=["utf-8", "other bytes"])
def test_a_key_is_sent_as_servers_read_it(key: bytes) -> None:
    with serving(json.dumps(make_snapshot().to_json())) as (address, keys):
        assert top(address, "--api-key", os.fsdecode(key)).exit_code == 0
    assert [sent.encode("latin-1") for sent in keys] == [b"Bearer " + key]


def test_what_a_server_sends_is_the_snapshot_it_took() -> None:
    with serving(json.dumps(make_snapshot().to_json())) as (address, _):
        assert fetch_snapshot(snapshot_url(address)) == make_snapshot()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [("{}", 200, "No snapshot"), ("hello", 200, "No snapshot"), ("", 401, "401")],
    ids=["other JSON", "no JSON", "no permission"],
)
def test_a_server_without_snapshots_is_told_in_one_line(body: str, status: int, message: str) -> None:
    with serving(body, status) as (address, _):
        result = top(address)
    assert (result.exit_code, message in result.stderr) == (1, True)
    assert result.stderr.count("\n") == 1


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    result = top("127.0.0.1:9")
    assert (result.exit_code, "No snapshot of an engine at" in result.stderr) == (1, True)
    assert "urlopen" not in result.stderr
    assert "`octavo serve MODEL` starts a server." in result.stderr


def test_a_server_is_watched_until_somebody_has_seen_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, looks = io.StringIO(), iter([None, None, KeyboardInterrupt()])

    def sleep(_: float) -> None:
        error = next(looks)
        if error is not None:
            raise error

    monkeypatch.setattr("octavo.explain.watching.time.sleep", sleep)
    with serving(json.dumps(make_snapshot().to_json())) as (address, keys), pytest.raises(KeyboardInterrupt):
        watch_server(snapshot_url(address), make_terminal(screen), interval=1.0)
    assert len(keys) == 3
    assert screen.getvalue().count("waits: seats") == 3


def test_a_server_that_goes_away_is_asked_some_more_times(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([make_snapshot(), ConfigError("gone"), make_snapshot(), *[ConfigError("gone")] * 5])

    def fetch(url: str, api_key: str | None) -> EngineSnapshot:
        del url, api_key
        answer = next(answers)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    monkeypatch.setattr("octavo.explain.watching.fetch_snapshot", fetch)
    screen = io.StringIO()
    with pytest.raises(ConfigError, match="gone"):
        watch_server("http://h/octavo/snapshot", make_terminal(screen), interval=0.0)
    assert "no answer for 4 times" in screen.getvalue()
    assert next(answers, None) is None


def test_an_engine_of_this_process_is_watched_while_it_runs() -> None:
    llm, _ = make_llm(step_seconds=0.01)
    screen = io.StringIO()
    console = make_terminal(screen)
    outputs: list[RequestOutput] = []
    with watching(llm, "test", interval=0.01, console=console):
        outputs = llm.generate("hello " * 10, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    llm.close()
    assert len(outputs[0].outputs[0].token_ids) == 20
    assert "1 of 32 seats" in screen.getvalue()


def test_bench_shows_its_engine_while_the_workload_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[object] = []

    @contextmanager
    def watch(llm: LLM, title: str) -> Iterator[None]:
        watched.append((llm.snapshot().running, title))
        yield

    monkeypatch.setattr("octavo.explain.watching.watching", watch)
    monkeypatch.setattr("octavo.bench.throughput.job_report", lambda *_: Report("throughput", {}, {}, "a table"))
    small = ["--input-len", "8", "--output-len", "4", "--num-prompts", "3", "--kv-cache-memory-bytes", "8M"]
    result = CliRunner().invoke(main, ["bench", "throughput", "-m", str(TINY), *small, "--top", "-q"])
    assert (result.exit_code, result.stdout) == (0, "a table\n")
    assert watched == [((), f"octavo bench throughput -m {TINY}")]
