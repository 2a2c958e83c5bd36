"""A real browser for tests of the dashboard: Debian's chromium, driven by playwright."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from server_process import ServerProcess

try:
    from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
except ImportError:
    Browser = Locator = Page = expect = Any  # type: ignore[assignment, misc]
    sync_playwright = None  # type: ignore[assignment]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_MS = 20_000
_MARGIN = 3
"""Pixels around the block map."""
_FLAGS = ["--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update"]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser; skip the test where there is none, unless OCTAVO_REQUIRE_BROWSER says that there must be."""
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if sync_playwright is None or executable is None:
        words = "no browser: needs chromium (apt-get install chromium) and playwright (pip install playwright)"
        if os.environ.get("OCTAVO_REQUIRE_BROWSER"):
            pytest.fail(words)
        pytest.skip(words)
    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_FLAGS, chromium_sandbox=False)
        yield browser
        browser.close()


class Dashboard:
    """The page in a tab of its own, which notes what must not happen.

    Args:
        options: of the tab, such as `viewport`.
    """

    def __init__(self, browser: Browser, server: ServerProcess, **options: Any) -> None:
        self.server = server
        self.errors: list[str] = []
        self.foreign_urls: list[str] = []
        self.page = browser.new_page(**options)
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))
        self.page.goto(f"{server.url}/dashboard")

    @property
    def blocks(self) -> Locator:
        return self.page.locator("figure.group").first

    @property
    def canvas(self) -> Locator:
        return self.page.locator(".map canvas").first

    @property
    def tip(self) -> Locator:
        return self.page.locator("#tip")

    def row(self, request_id: str) -> Locator:
        return self.page.locator("#requests tbody tr", has_text=request_id)

    def point_at_block(self, block_id: int) -> None:
        """Move the mouse to a block."""
        pitch, columns = (int(self.canvas.get_attribute(f"data-{name}") or 0) for name in ("pitch", "columns"))
        x, y = (_MARGIN + pitch // 2 + place * pitch for place in (block_id % columns, block_id // columns))
        self.canvas.hover(position={"x": x, "y": y})

    def framed_blocks(self) -> list[int]:
        """Return the blocks whose upper left corner has the colour of ink: which ones look shared."""
        corners = self.canvas.evaluate(
            """(canvas, margin) => {
                const number = (name) => Number(canvas.dataset[name]);
                const [pitch, columns, shown] = [number("pitch"), number("columns"), number("shown")];
                const context = canvas.getContext("2d");
                return Array.from({length: shown}, (_, id) => {
                    const [x, y] = [margin + (id % columns) * pitch, margin + Math.floor(id / columns) * pitch];
                    return [...context.getImageData(x, y, 1, 1).data.slice(0, 3)];
                });
            }""",
            _MARGIN,
        )
        ink = self.colour("--ink")
        return [block_id for block_id, corner in enumerate(corners) if corner == ink]

    def colour(self, name: str) -> list[int]:
        """Return red, green and blue of a colour of the theme."""
        text = self.page.evaluate(
            """(name) => {
                const probe = document.body.appendChild(document.createElement("i"));
                probe.style.color = `var(${name})`;
                const text = getComputedStyle(probe).color;
                probe.remove();
                return text;
            }""",
            name,
        )
        return [int(value) for value in re.findall(r"\d+", text)[:3]]

    def picture(self) -> bytes:
        """Return what the block map looks like."""
        return self.canvas.evaluate("(canvas) => canvas.toDataURL()").encode()

    def close(self) -> None:
        self.page.close()

    def _note(self, url: str) -> None:
        if not url.startswith((f"{self.server.url}/", "data:")):
            self.foreign_urls.append(url)


@contextmanager
def generating(server: ServerProcess, prompt: str, **fields: Any) -> Iterator[None]:
    """Keep a streamed completion running, which is past its first token, until the block ends.

    Args:
        prompt: of 8 characters or more.
    """
    body = {"prompt": prompt, "stream": True, "temperature": 0, "ignore_eos": True, "max_tokens": 2000, **fields}
    headers = {"authorization": "Bearer a-key"}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=60) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        next(lines)
        yield
        lines.close()
