"""Environment variables: where the cache lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import envs


@pytest.mark.parametrize(
    ("own", "xdg", "expected"),
    [
        pytest.param("/data/octavo", "/xdg", "/data/octavo", id="own-wins"),
        pytest.param("~/octavo", None, "/home/me/octavo", id="home-expanded"),
        pytest.param("", "/xdg", "/xdg/octavo", id="xdg"),
        pytest.param(None, "relative", "/home/me/.cache/octavo", id="relative-xdg-ignored"),
        pytest.param(None, None, "/home/me/.cache/octavo", id="default"),
    ],
)
def test_cache_directory(monkeypatch: pytest.MonkeyPatch, own: str | None, xdg: str | None, expected: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in (("OCTAVO_CACHE", own), ("XDG_CACHE_HOME", xdg)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert envs.cache_dir() == Path(expected)


def test_isa_level_is_free_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_ISA", raising=False)
    assert envs.forced_isa() is None
    monkeypatch.setenv("OCTAVO_ISA", "generic")
    assert envs.forced_isa() == "generic"
