"""The dashboard's files as the server gives them; what they do is for a browser to show."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from server_process import ServerProcess, serve_fake

import octavo.server

FILES = sorted((Path(octavo.server.__file__).parent / "dashboard").iterdir())
ASSET = re.compile(r"""(?:src|href)="(?!#)([^"]+)"|from "([^"]+)"|url\(["']?([^"')]+)""")


def test_the_page_and_its_files_are_served(echo_server: ServerProcess) -> None:
    page = echo_server.client.get("/dashboard")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for path in ("main.js", "theme.css", "icon.svg"):
        assert echo_server.client.get(f"/dashboard/{path}").status_code == 200


def test_the_root_leads_to_the_page(echo_server: ServerProcess) -> None:
    answer = echo_server.client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "dashboard")
    assert echo_server.client.get("/", follow_redirects=True).url.path == "/dashboard"


def test_the_policy_lets_the_page_run_and_ask_nothing_but_its_server(echo_server: ServerProcess) -> None:
    policy = echo_server.client.get("/dashboard").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert set(rules.values()) == {"'none'", "'self'"}
    assert rules["default-src"] == rules["frame-ancestors"] == "'none'"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_names_an_asset_that_is_not_beside_it(file: Path) -> None:
    names = [next(filter(None, groups)) for groups in ASSET.findall(file.read_text(encoding="utf-8"))]
    own = {entry.name for entry in FILES}
    assert [name for name in names if re.sub(r"^(\./|dashboard/)", "", name) not in own] == []


@pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".js"], ids=lambda file: file.name)
def test_no_script_makes_markup_or_code_of_text(file: Path) -> None:
    banned = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser")
    assert banned.findall(file.read_text(encoding="utf-8")) == []


def test_a_path_leads_to_no_other_file(echo_server: ServerProcess) -> None:
    for path in ("/dashboard/../app.py", "/dashboard/%2e%2e/app.py", "/dashboard/index.html", "/dashboard/"):
        assert httpx.get(httpx.URL(echo_server.url, raw_path=path.encode())).status_code == 404


def test_the_log_says_where_the_page_is(echo_server: ServerProcess) -> None:
    assert f"dashboard: {echo_server.url}/dashboard" in echo_server.log()


def test_polls_are_not_logged_unless_they_fail(echo_server: ServerProcess) -> None:
    echo_server.client.get("/octavo/snapshot")
    echo_server.client.get("/octavo/snapshot/of/nothing")
    echo_server.until(lambda: "GET /octavo/snapshot/of/nothing 404" in echo_server.log())
    assert "GET /octavo/snapshot 200" not in echo_server.log()


def test_a_key_guards_the_data_and_not_the_page() -> None:
    with serve_fake("--api-key", "a-key") as guarded:
        status = {path: guarded.client.get(path).status_code for path in ("/", "/dashboard", "/dashboard/main.js")}
        assert status == {"/": 307, "/dashboard": 200, "/dashboard/main.js": 200}
        for path in ("/octavo/snapshot", "/dashboard/", "/dashboard/nothing", "/dashboard/../metrics", "/dashboard%2f"):
            url = httpx.URL(guarded.url, raw_path=path.encode())
            assert httpx.get(url).status_code == 401


def test_a_server_without_the_page_says_so() -> None:
    with serve_fake("--disable-dashboard") as plain:
        for path in ("/", "/dashboard", "/dashboard/main.js"):
            assert plain.client.get(path).status_code == 404
        assert plain.client.get("/octavo/snapshot").status_code == 200
        assert "dashboard: " not in plain.log()
