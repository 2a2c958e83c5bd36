from __future__ import annotations

import os
import subprocess
import sys

import pytest

import octavo

LOADED = """
import sys
import octavo
print(sorted(m for m in sys.modules if m.split('.')[0] in ('numpy', 'tokenizers', 'jinja2', 'click', 'tqdm', 'torch')))
"""


def test_public_names_are_sorted_and_importable() -> None:
    names = octavo.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name.startswith("_"), name))
    assert all(getattr(octavo, name) is not None for name in names)
    assert set(names) <= set(dir(octavo))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = octavo.nonsense


def test_importing_the_package_loads_no_other() -> None:
    """What keeps `import octavo` at some 20 ms: names are loaded when they are used."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "[]\n"


def test_an_engine_starts_without_what_only_those_need_who_look_at_it() -> None:
    script = "import sys, octavo.frontend.build; print([m for m in sys.modules if m.endswith('snapshot')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "[]\n"
