from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.errors import ModelLoadError
from octavo.formats import json_file
from octavo.formats.json_file import read_json_object


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "is a JSON list, expected an object"),
        ('{"a": 1, "a": 2}', "appears twice"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "nested too deeply"),
        ("\xff\xfe", "not valid JSON"),
    ],
    ids=["cut", "list", "duplicate", "nan", "deep", "utf16"],
)
def test_malformed_json_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelLoadError, match=f"config.json.*{message}"):
        read_json_object(path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(json_file.MAX_JSON_BYTES + 1)
    with pytest.raises(ModelLoadError, match="at most"):
        read_json_object(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelLoadError, match="not a regular file"):
        read_json_object(tmp_path / "config.json")
