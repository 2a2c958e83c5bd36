"""Values of flags that are JSON."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from octavo.cli.foreign_flags import given_foreign_options
from octavo.cli.option_types import JsonObject

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", ["{", DEEP], ids=["cut", "deep"])
def test_what_cannot_be_read_as_json_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not JSON"):
        JsonObject().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ('{"a": 1}', {"a": 1}), ("a", "a"), (DEEP, DEEP)],
    ids=["number", "object", "word", "deep"],
)
def test_a_foreign_flag_that_is_no_json_is_a_text(text: str, value: object) -> None:
    assert given_foreign_options({"foreign_x": text}) == {"x": value}


def test_the_types_need_no_click_whose_own_are_generic() -> None:
    program = "import click; click.ParamType.__class_getitem__ = None; import octavo.cli.engine_flags"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
