from __future__ import annotations

import pytest

from octavo.errors import NativeError
from octavo.native import ISA_LEVELS, isa, kernels, load_kernels


@pytest.fixture
def fresh_choice() -> None:
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
def test_the_best_level_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_ISA", raising=False)
    assert kernels().isa == isa.best_isa()


@pytest.mark.usefixtures("fresh_choice")
def test_the_environment_forces_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_ISA", "generic")
    assert kernels().isa == "generic"


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NativeError, match=r"'sse9' is unknown.*generic, avx2, avx512"):
        load_kernels("sse9")


def test_a_level_that_the_cpu_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "best_isa", lambda: "generic")
    with pytest.raises(NativeError, match="OCTAVO_ISA is avx2, but this CPU can run generic at best"):
        load_kernels("avx2")


def test_a_missing_module_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "ISA_LEVELS", (*ISA_LEVELS, "next"))
    monkeypatch.setattr(isa, "best_isa", lambda: "next")
    with pytest.raises(NativeError, match="pip install"):
        load_kernels("next")
