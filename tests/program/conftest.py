"""The native module under test: every ISA level that this CPU runs, one after the other."""

from __future__ import annotations

from types import ModuleType

import pytest

from octavo.native import ISA_LEVELS, load_kernels
from octavo.native.isa import best_isa

RUNNABLE = ISA_LEVELS[: ISA_LEVELS.index(best_isa()) + 1]


@pytest.fixture(scope="session", params=RUNNABLE)
def module(request: pytest.FixtureRequest) -> ModuleType:
    loaded: ModuleType = load_kernels(request.param)
    return loaded


@pytest.fixture(scope="session")
def best_module() -> ModuleType:
    loaded: ModuleType = load_kernels(best_isa())
    return loaded
