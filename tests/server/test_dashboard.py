"""The dashboard in a real browser, over a real engine whose model is slow enough to be watched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser import Browser, Dashboard, expect, generating, open_browser
from server_process import ServerProcess, serve_fake

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
HOSTILE_ID = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
BLOCK = 16

Opener = Callable[..., Dashboard]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def slow_server() -> Iterator[ServerProcess]:
    """Two seats, and a token of each every 10 ms."""
    with serve_fake("--step-seconds", "0.01", "--max-num-seqs", "2", "--num-blocks", "2000") as process:
        yield process


@pytest.fixture
def open_dashboard(browser: Browser) -> Iterator[Opener]:
    """Opens dashboards, which must neither err nor ask anybody but their server."""
    opened: list[tuple[Dashboard, bool]] = []

    def open_one(server: ServerProcess, *, may_fail: bool = False, **options: Any) -> Dashboard:
        opened.append((Dashboard(browser, server, **options), may_fail))
        return opened[-1][0]

    yield open_one
    for dashboard, may_fail in opened:
        dashboard.close()
        assert dashboard.foreign_urls == []
        assert may_fail or dashboard.errors == []


def highest_block(server: ServerProcess) -> int:
    """Return the highest id that is used or cached: those above are handed out soon."""
    (group,) = server.client.get("/octavo/snapshot").json()["cache_groups"]
    return max([block["block_id"] for block in group["used"]] + group["cached"])


def test_a_running_generation_moves_on_the_block_map(open_dashboard: Opener, slow_server: ServerProcess) -> None:
    dashboard = open_dashboard(slow_server)
    expect(dashboard.blocks).to_have_attribute("data-used", "0")
    with generating(slow_server, "a" * (4 * BLOCK)):
        expect(dashboard.blocks).to_have_attribute("data-used", re.compile("[4-9]|..+"))
        soon = highest_block(slow_server) + 20
        used, picture = dashboard.blocks.get_attribute("data-used"), dashboard.picture()
        expect(dashboard.blocks).not_to_have_attribute("data-used", used or "")
        assert dashboard.picture() != picture
        dashboard.point_at_block(soon)
        expect(dashboard.tip).to_contain_text("free: it holds nothing")
        expect(dashboard.tip).to_contain_text(f"Block {soon}: used by one request")
    expect(dashboard.blocks).to_have_attribute("data-used", "0")
    expect(dashboard.blocks).to_have_attribute("data-cached", re.compile("[1-9]"))


def test_the_blocks_of_a_shared_prefix_are_marked_as_shared(open_dashboard: Opener, slow_server: ServerProcess) -> None:
    dashboard = open_dashboard(slow_server)
    prefix = "the same beginning " * 5
    with generating(slow_server, prefix + "A", request_id="first"):
        expect(dashboard.row("first")).to_contain_text("decode")
        with generating(slow_server, prefix + "B", request_id="second"):
            expect(dashboard.row("second")).to_contain_text("decode")
            num_shared = len(prefix) // BLOCK
            expect(dashboard.blocks).to_have_attribute("data-shared", str(num_shared))
            dashboard.page.get_by_role("button", name="Pause").click()
            shared = dashboard.framed_blocks()
            assert len(shared) == num_shared, "framed in ink, and no other block is"
            dashboard.point_at_block(shared[0])
            for words in ("shared by 2 requests", "ref count 2", "16 of 16 slots filled", "first", "second"):
                expect(dashboard.tip).to_contain_text(words)


def test_a_cached_prefix_shows_in_the_progress_of_a_request(open_dashboard: Opener, slow_server: ServerProcess) -> None:
    dashboard = open_dashboard(slow_server)
    prompt = "found in the prefix cache " * 4
    slow_server.complete(prompt, max_tokens=1)
    with generating(slow_server, prompt, request_id="again"):
        num_cached = (len(prompt) - 1) // BLOCK * BLOCK
        expect(dashboard.row("again")).to_contain_text(f"{len(prompt)}, {num_cached} cached")


def test_a_waiting_request_says_why_in_words(open_dashboard: Opener, slow_server: ServerProcess) -> None:
    dashboard = open_dashboard(slow_server)
    body = {"prompt": "late", "request_id": "late", "max_tokens": 4}
    ask_later = """(body) => {
        const headers = {"content-type": "application/json"};
        fetch("v1/completions", {method: "POST", headers, body: JSON.stringify(body)});
    }"""
    with generating(slow_server, "the first"), generating(slow_server, "the second"):
        dashboard.page.evaluate(ask_later, body)
        expect(dashboard.row("late")).to_contain_text("waits: all 2 seats are taken")


def test_choosing_a_request_leaves_its_blocks_alone_in_colour(
    open_dashboard: Opener, slow_server: ServerProcess
) -> None:
    dashboard = open_dashboard(slow_server)
    with generating(slow_server, "x" * 60, request_id="chosen"), generating(slow_server, "y" * 60, request_id="other"):
        expect(dashboard.row("chosen")).to_contain_text("decode")
        expect(dashboard.row("other")).to_contain_text("decode")
        dashboard.page.get_by_role("button", name="Pause").click()
        before = dashboard.picture()
        button = dashboard.row("chosen").get_by_role("button")
        button.press("Enter")
        expect(button).to_have_attribute("aria-pressed", "true")
        assert dashboard.picture() != before
        button.press("Enter")
        assert dashboard.picture() == before


def test_a_paused_picture_stands_still_until_the_next_is_asked_for(
    open_dashboard: Opener, slow_server: ServerProcess
) -> None:
    dashboard = open_dashboard(slow_server)
    body = dashboard.page.locator("body")
    with generating(slow_server, "a" * 40):
        expect(dashboard.blocks).to_have_attribute("data-used", re.compile("[1-9]"))
        dashboard.page.get_by_role("button", name="Pause").click()
        expect(dashboard.page.get_by_role("status").first).to_contain_text("paused at")
        step, picture = body.get_attribute("data-step") or "", dashboard.picture()
        num_steps = slow_server.metric("octavo:steps_total")
        slow_server.until(lambda: slow_server.metric("octavo:steps_total") > num_steps + 60)
        assert (body.get_attribute("data-step"), dashboard.picture()) == (step, picture)
        dashboard.page.get_by_role("button", name="Next picture").click()
        expect(body).not_to_have_attribute("data-step", step)
        dashboard.page.get_by_role("button", name="Resume").click()
        expect(dashboard.page.locator("#state")).to_have_text("live")


def test_the_chat_streams_answers_and_says_what_was_cached(open_dashboard: Opener, server: ServerProcess) -> None:
    page = open_dashboard(server).page
    page.get_by_label("Tokens, at most").fill("24")
    page.get_by_label("Temperature").fill("0")
    for turn in (1, 2):
        page.get_by_label("Message").fill("Hello there")
        page.get_by_label("Message").press("Enter")
        expect(page.locator(".turn.answer .text")).to_have_count(turn)
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.locator("#chat-status")).to_contain_text("first after")
    expect(page.locator("#chat-status")).to_contain_text(re.compile(r"[1-9]\d* of \d+ prompt tokens cached"))
    assert page.locator(".turn.answer .text").first.inner_text() != ""


def test_an_answer_of_some_length_tells_its_speed(open_dashboard: Opener, server: ServerProcess) -> None:
    page = open_dashboard(server).page
    page.get_by_label("Tokens, at most").fill("420")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Message").fill("Tell me a story")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#chat-status")).to_contain_text(re.compile(r"\d+ tokens, [\d,.]+ tokens/s; first after"))


def test_an_answer_can_be_stopped(open_dashboard: Opener, server: ServerProcess) -> None:
    dashboard = open_dashboard(server)
    page = dashboard.page
    page.route("**/v1/chat/completions", lambda _route: None)  # an answer that does not come
    page.get_by_label("Message").fill("Hello")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#chat-status")).to_contain_text("Stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_reasoning_and_tool_calls_of_an_answer_are_folded(open_dashboard: Opener, server: ServerProcess) -> None:
    dashboard = open_dashboard(server)
    page = dashboard.page
    deltas = (
        '{"reasoning_content": "Let me <b>think</b>"}',
        '{"tool_calls": [{"index": 0, "function": {"name": "look_up", "arguments": "{}"}}]}',
        '{"content": "Done"}',
    )
    events = "".join(f'data: {{"id": "x", "choices": [{{"index": 0, "delta": {delta}}}]}}\n\n' for delta in deltas)
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=events + "data: [DONE]\n\n", content_type="text/event-stream"),
    )
    page.get_by_label("Message").fill("Hello")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn.answer > .text")).to_have_text("Done")
    folded = page.locator(".turn.answer details:not([open])")
    expect(folded).to_have_count(2)
    expect(folded.nth(0).locator(".text")).to_have_text("Let me <b>think</b>")
    expect(folded.nth(1).locator(".text")).to_have_text("look_up {}")


def test_a_hostile_request_id_is_only_text(open_dashboard: Opener, slow_server: ServerProcess) -> None:
    dashboard = open_dashboard(slow_server)
    with generating(slow_server, "a" * 40, request_id=HOSTILE_ID):
        row = dashboard.row("<img")
        expect(row).to_contain_text("decode")
        expect(row.get_by_role("button")).to_have_attribute("title", HOSTILE_ID)
        dashboard.page.get_by_role("button", name="Pause").click()
        (request,) = slow_server.client.get("/octavo/snapshot").json()["running"]
        dashboard.point_at_block(request["block_ids"][0][0])
        expect(dashboard.tip).to_contain_text("<img")
    assert dashboard.page.locator("#requests img, #tip img, script:not([src])").count() == 0
    assert dashboard.page.evaluate("window.hacked") is None


def test_a_server_that_has_gone_is_missed_and_found_again(open_dashboard: Opener, slow_server: ServerProcess) -> None:
    dashboard = open_dashboard(slow_server, may_fail=True)
    page = dashboard.page
    expect(page.locator("#state")).to_have_text("live")
    page.route("**/octavo/snapshot", lambda route: route.abort())
    expect(page.get_by_role("alert").first).to_contain_text("The server does not answer")
    expect(page.locator("#state")).to_have_text("no answer")
    page.unroute("**/octavo/snapshot")
    expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#trouble")).to_be_hidden()


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(open_dashboard: Opener) -> None:
    with serve_fake("--api-key", "a-key") as guarded:
        dashboard = open_dashboard(guarded, may_fail=True)
        page = dashboard.page
        for key in ("a wrong key", "a-key"):
            page.get_by_label("This server asks for an API key").fill(key)
            page.get_by_role("button", name="Use it").click()
            if key == "a wrong key":
                expect(page.locator("#key-wrong")).to_have_text("The server refused this key.")
        expect(page.locator("#state")).to_have_text("live")
        expect(page.locator("#key-form")).to_be_hidden()
        page.reload()
        expect(page.locator("#state")).to_have_text("live")
        assert "a-key" not in page.evaluate("JSON.stringify(localStorage) + document.cookie")


def test_ten_thousand_blocks_have_a_place_each(open_dashboard: Opener) -> None:
    with serve_fake("--num-blocks", "12000") as large:
        dashboard = open_dashboard(large)
        expect(dashboard.blocks).to_have_attribute("data-free", "12000")
        dashboard.page.get_by_label("also blocks never used").check()
        dashboard.canvas.focus()
        dashboard.page.keyboard.press("End")
        expect(dashboard.tip).to_contain_text("Block 11,999free")
        dashboard.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_switch(
    open_dashboard: Opener, slow_server: ServerProcess, scheme: str
) -> None:
    page = open_dashboard(slow_server, color_scheme=scheme).page
    other = "dark" if scheme == "light" else "light"

    def brightness() -> int:
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", ground)[:3]))

    def is_light() -> bool:
        return brightness() > 600

    assert is_light() == (scheme == "light")
    page.get_by_label("Theme").select_option(other)
    assert is_light() == (other == "light")
    page.reload()
    assert is_light() == (other == "light"), "remembered"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(open_dashboard: Opener, slow_server: ServerProcess, scheme: str) -> None:
    dashboard = open_dashboard(slow_server, color_scheme=scheme)
    with generating(slow_server, "a" * 40, request_id="one"):
        expect(dashboard.row("one")).to_contain_text("decode")
        expect(dashboard.page.locator("#phases")).to_be_visible()
        assert dashboard.page.evaluate(WEAK_TEXTS) == []


WEAK_TEXTS = """() => {
    const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (text) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = text;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data];
    };
    const luminance = (rgb) => rgb.slice(0, 3).map((value) => value / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
        .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
    const ground = (element) => {
        for (let place = element; place; place = place.parentElement) {
            const colour = rgba(getComputedStyle(place).backgroundColor);
            if (colour[3] === 255) return colour;
        }
    };
    const weak = [];
    for (const element of document.querySelectorAll("body *")) {
        const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!hasText || !element.checkVisibility() || element.disabled) continue;
        const [one, two] = [luminance(rgba(getComputedStyle(element).color)), luminance(ground(element))];
        const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
        if (contrast < 4.5) weak.push(`${element.textContent.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
    }
    return weak;
}"""


def test_a_phone_scrolls_in_one_direction_only(open_dashboard: Opener, slow_server: ServerProcess) -> None:
    dashboard = open_dashboard(slow_server, **PHONE)
    name = "a-very-long-request-id-" * 6
    with generating(slow_server, "a" * 40, request_id=name), generating(slow_server, "a" * 40):
        expect(dashboard.row("a-very-long")).to_contain_text("decode")
        dashboard.canvas.tap(position={"x": 10, "y": 10})
        expect(dashboard.tip).to_contain_text("Block 0")
        widths = dashboard.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths == [360, 360]


def test_long_counts_fit_on_a_phone(open_dashboard: Opener, slow_server: ServerProcess) -> None:
    dashboard = open_dashboard(slow_server, **PHONE)
    slow_server.complete("a" * 1100, max_tokens=1)
    with generating(slow_server, "a" * 1100, max_tokens=2900):
        expect(dashboard.page.locator("#requests")).to_contain_text("of 2,900")
        state = dashboard.page.locator("#requests td.doing").bounding_box()
        width = dashboard.page.evaluate("document.documentElement.scrollWidth")
    assert state is not None
    assert state["x"] + state["width"] <= width == 360


def test_every_control_has_a_name_and_the_page_its_landmarks(
    open_dashboard: Opener, slow_server: ServerProcess
) -> None:
    page = open_dashboard(slow_server).page
    for landmark in ("banner", "main", "complementary"):
        expect(page.get_by_role(landmark)).to_have_count(1)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, canvas[tabindex]")]
            .filter((entry) => entry.checkVisibility())
            .filter((entry) => !(entry.textContent.trim() || entry.ariaLabel || entry.labels?.length))
            .map((entry) => entry.outerHTML)"""
    )
    assert unnamed == []
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message")).to_be_focused()
