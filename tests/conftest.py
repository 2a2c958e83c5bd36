"""Fixtures every test may use: the real models. Also puts this directory on the path: tests share its helpers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from octavo import envs
from octavo.weights.hub import resolve_model_files

DATA = Path(__file__).parent / "data"
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the hub is tested from a cache: no test depends on its being reachable

MODELS = envs.cache_dir() / "models"
"""Fixed before any test changes the environment."""


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct (llama, Q4_1), fetched by the product itself into the user's cache."""
    return resolve_model_files("smollm2-135m", download_dir=MODELS).path


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """gemma-3-270m (gemma3, Q4_K_M), fetched by the product itself into the user's cache."""
    return resolve_model_files("gemma3-270m", download_dir=MODELS).path


@pytest.fixture(scope="session")
def reference_greedy() -> dict[str, Any]:
    """float32 results of another implementation on both real models: see the note in the file."""
    models: dict[str, Any] = json.loads((DATA / "reference_greedy.json").read_text())["models"]
    return models


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory for this test alone."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
