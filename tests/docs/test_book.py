"""The book: every chapter is there, its pictures and recordings exist, and the commands that it shows are real ones."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "docs" / "book"
CHAPTERS = sorted(BOOK.glob("[1-5]-*.md"))
TEXTS = [*CHAPTERS, BOOK / "README.md", ROOT / "README.md", ROOT / "README.zh-CN.md"]


def commands_of(path: Path) -> list[str]:
    """Return the commands of `octavo` that a text shows."""
    text = path.read_text(encoding="utf-8").replace("\\\n    ", "")
    return re.findall(r"^(?:\$ | {4})(octavo [^#\n]*)", text, re.MULTILINE)


def test_there_are_five_chapters_and_the_first_in_chinese() -> None:
    assert [path.name for path in CHAPTERS] == [
        "1-offline.md",
        "1-offline.zh-CN.md",
        "2-batching.md",
        "3-scheduler.md",
        "4-paged-attention.md",
        "5-source.md",
    ]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_command_shown_is_one_of_the_program(path: Path) -> None:
    for text in commands_of(path):
        _, name, *arguments = shlex.split(text)
        group = [name, arguments[0]] if name in ("bench", "lab") else [name]
        usage = CliRunner().invoke(main, [*group, "--help"])
        assert usage.exit_code == 0, text
        for flag in (part for part in arguments if part.startswith("--")):
            assert flag in usage.output, f"{text}: {flag}"


@pytest.mark.parametrize("path", CHAPTERS[:4], ids=lambda path: path.name)
def test_chapters_show_commands_and_what_they_print(path: Path) -> None:
    assert len(re.findall(r"```text\n\$ octavo ", path.read_text(encoding="utf-8"))) >= 3


def test_both_languages_of_chapter_1_show_the_same() -> None:
    english, chinese = (re.findall(r"```.*?```", path.read_text(encoding="utf-8"), re.DOTALL) for path in CHAPTERS[:2])
    assert english == chinese


def test_readmes_show_the_same_program() -> None:
    english, chinese = (
        re.findall(r"```python\n.*?```\n\n```text\n.*?```", path.read_text(encoding="utf-8"), re.DOTALL)
        for path in TEXTS[-2:]
    )
    assert english == chinese
