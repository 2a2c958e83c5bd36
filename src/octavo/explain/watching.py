"""Looking at an engine while it runs: in this process, or at a server's snapshots over HTTP. Needs rich."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.console import Console
from rich.live import Live

from octavo.errors import ConfigError, EngineDeadError
from octavo.explain.top_view import top_screen
from octavo.observe.snapshot import EngineSnapshot

if TYPE_CHECKING:
    from octavo.llm import LLM

SNAPSHOT_PATH = "/octavo/snapshot"
_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 1 << 28
_PATIENCE = 5
"""Answers in a row that may fail before a server is given up."""


def snapshot_url(server: str) -> str:
    """Return where a server gives its snapshots.

    Args:
        server: its address, such as localhost:8000 or https://example.org/models.

    Raises: `ConfigError` for what is no such address.
    """
    url = server if "://" in server else f"http://{server}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{server!r} is no address of a server; expected one like http://localhost:8000.")
    return url if parts.path.endswith(SNAPSHOT_PATH) else url.rstrip("/") + SNAPSHOT_PATH


def fetch_snapshot(url: str, api_key: str | None = None) -> EngineSnapshot:
    """Ask a server for a snapshot.

    Raises: `ConfigError` if it gives none.
    """
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            return EngineSnapshot.from_json(json.loads(response.read(_MOST_BYTES)))
    except urllib.error.HTTPError as error:
        error.close()
        raise ConfigError(f"{url} answered {error.code} {error.reason}.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        hint = ". `octavo serve MODEL` starts a server." if isinstance(error, OSError) else ""
        raise ConfigError(f"No snapshot of an engine at {url}: {reason}{hint}") from error


def show_once(snapshot: EngineSnapshot, title: str, console: Console) -> None:
    """Print one screen."""
    console.print(top_screen(snapshot, title, console.width))


def watch_server(url: str, console: Console, *, interval: float, api_key: str | None = None) -> None:
    """Show a server's engine until interrupted.

    Args:
        interval: seconds between two snapshots.

    Raises: `ConfigError` if the server gives no snapshot, at the start or for some time.
    """
    shown, num_failed = fetch_snapshot(url, api_key), 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lost = f"   no answer for {num_failed} times" if num_failed else ""
            live.update(top_screen(shown, url.removesuffix(SNAPSHOT_PATH) + lost, console.width), refresh=True)
            time.sleep(interval)
            try:
                shown, num_failed = fetch_snapshot(url, api_key), 0
            except ConfigError:
                num_failed += 1
                if num_failed == _PATIENCE:
                    raise


@contextmanager
def watching(llm: LLM, title: str, *, interval: float = 0.5, console: Console | None = None) -> Iterator[None]:
    """Show an engine of this process on stderr while the block runs.

    Args:
        interval: seconds between two snapshots; one is taken between two steps, on the engine's thread.
    """
    console = console or Console(stderr=True)
    stop = threading.Event()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw() -> None:
            live.update(top_screen(llm.snapshot(), title, console.width), refresh=True)

        thread = threading.Thread(target=_draw_until, args=(stop, draw, interval), name="octavo-top", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _draw_until(stop: threading.Event, draw: Callable[[], None], interval: float) -> None:
    while not stop.is_set():
        try:
            draw()
        except EngineDeadError:
            return
        stop.wait(interval)
