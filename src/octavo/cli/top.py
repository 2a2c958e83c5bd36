"""`octavo top`: a server's engine in the terminal, as it runs."""

from __future__ import annotations

import click

from octavo.cli.option_types import ApiKey


@click.command("top", short_help="Watch the engine of a running server.")
@click.argument("server", default="http://localhost:8000")
@click.option(
    "--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Print one screen; so it is also where stdout is no terminal.")
@click.option("--api-key", type=ApiKey(), envvar="OCTAVO_API_KEY", help="Key of the server, if it wants one.")
def command(server: str, interval: float, once: bool, api_key: str | None) -> None:
    """Watch the engine of SERVER: requests, the block pool, tokens per second, where the time of a step goes.

    Reads GET /octavo/snapshot; Ctrl-C ends it. `octavo bench throughput --top` shows the same of its own engine.
    """
    from octavo.explain.views import require

    require("rich")
    from rich.console import Console

    from octavo.explain.watching import fetch_snapshot, show_once, snapshot_url, watch_server

    if api_key is not None:
        api_key = api_key.encode("utf-8", "surrogateescape").decode("latin-1")  # headers are written as Latin-1
    console, url = Console(), snapshot_url(server)
    if once or not console.is_terminal:
        show_once(fetch_snapshot(url, api_key), server, console)
        return
    try:
        watch_server(url, console, interval=interval, api_key=api_key)
    except KeyboardInterrupt:
        return
