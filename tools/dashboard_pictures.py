"""Take the pictures of docs/dashboard.md again: a server under load, seen by a browser.

usage: python tools/dashboard_pictures.py [MODEL]        needs chromium, and pip install '.[server,views,browser]'

Ten students ask one tutor, so that requests share its instructions; two more seats than there are make some wait.
"""

from __future__ import annotations

import io
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

PICTURES = Path(__file__).parent.parent / "docs" / "images"
FLAGS = ("--port", "0", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "180M", "--served-model-name", "smollm2-135m")
NUM_STUDENTS = 10
TUTOR = (
    "You are a patient teacher of physics. Answer in plain words, give one example from daily life, and end with a "
    "question that makes the student think further. Use no formulas unless the student asks for them. Keep to the "
    "facts, and say so when something is not known. Greet nobody, and do not repeat the question. "
)
QUESTIONS = (
    "What is gravity?", "Why is the sky blue?", "How does a magnet work?", "What is heat?", "Why do ships float?",
    "What is light?", "How does a battery work?", "Why does ice melt?", "What makes thunder?", "What is sound?",
)  # fmt: skip
CHAT = ("Why does the moon not fall down?", "Could I jump higher there?")
SCALE = 1.25
WIDE, PHONE = {"width": 1440, "height": 1650}, {"width": 390, "height": 1500}


@contextmanager
def serving(model: str) -> Iterator[str]:
    """Serve a model; yields the address."""
    command = [sys.executable, "-m", "octavo", "serve", model, *FLAGS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield next(match[1] for line in process.stderr if (match := re.search(r"dashboard: (\S+)/dashboard", line)))
        finally:
            process.terminate()


@contextmanager
def students(url: str) -> Iterator[None]:
    """Keep requests coming."""
    has_ended = threading.Event()

    def ask_on(number: int) -> None:
        generator = random.Random(number)
        for turn in range(1000):
            if has_ended.is_set():
                return
            question = {"role": "user", "content": generator.choice(QUESTIONS)}
            tutor = [{"role": "system", "content": TUTOR}] if number % 4 else []
            body = {"messages": [*tutor, question], "max_tokens": generator.randint(60, 420), "seed": turn}
            body["request_id"] = f"student-{number}-question-{turn + 1}"
            with suppress(httpx.HTTPError):  # the server ends first
                httpx.post(f"{url}/v1/chat/completions", json=body, timeout=None)

    threads = [threading.Thread(target=ask_on, args=(number,), daemon=True) for number in range(NUM_STUDENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        has_ended.set()


def open_page(browser: Browser, url: str, *questions: str, **options: Any) -> Page:
    """Open the dashboard, and ask something in its chat; the last answer is half there."""
    page = browser.new_page(device_scale_factor=SCALE, **options)
    page.goto(f"{url}/dashboard")
    page.get_by_label("Tokens, at most").fill("150")
    page.get_by_label("Temperature").fill("0")  # the same answers every time, and long enough
    for question in questions:
        expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)
        page.get_by_label("Message").fill(question)
        page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn.answer .text").last).to_contain_text(re.compile(r"(\w+\W+){30}"), timeout=120_000)
    return page


def point_at_most_shared(page: Page, url: str) -> None:
    """Move the mouse to the block that most requests share; of several, the last."""
    (group,) = httpx.get(f"{url}/octavo/snapshot").json()["cache_groups"]
    _, block_id = max((block["ref_cnt"], block["block_id"]) for block in group["used"])
    canvas = page.locator(".map canvas")
    pitch, columns = (int(canvas.get_attribute(f"data-{name}") or 1) for name in ("pitch", "columns"))
    canvas.hover(position={"x": (block_id % columns) * pitch + pitch / 2, "y": (block_id // columns + 0.5) * pitch})


def save(page: Page, name: str) -> None:
    """Write what is seen."""
    picture = Image.open(io.BytesIO(page.screenshot()))
    small = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
    small.save(PICTURES / f"dashboard-{name}.png", optimize=True)


def main() -> None:
    """Take three pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with serving(model) as url, students(url), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        shared = re.compile("[5-9]|..+")
        for name in ("light", "dark"):
            page = open_page(browser, url, *CHAT, viewport=WIDE, color_scheme=name)
            expect(page.locator("figure.group")).to_have_attribute("data-shared", shared, timeout=60_000)
            point_at_most_shared(page, url)
            save(page, name)
            page.close()
        page = open_page(browser, url, CHAT[0], viewport=PHONE, color_scheme="light")
        page.evaluate("scrollTo(0, 0)")
        save(page, "phone")
        browser.close()


if __name__ == "__main__":
    main()
