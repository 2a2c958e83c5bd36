"""The native modules under test: every ISA level that was built and that this CPU runs."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

LEVELS = ("generic", "avx2", "avx512")


@pytest.fixture(scope="session", params=LEVELS)
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The native module of one ISA level; skipped where the CPU cannot run it or the platform does not have it."""
    best: str = importlib.import_module("octavo.native._detect").best()
    if LEVELS.index(request.param) > LEVELS.index(best):
        pytest.skip(f"this CPU runs {best}, not {request.param}")
    return importlib.import_module(f"octavo.native._k_{request.param}")
