"""A server for all tests of this directory that need nothing special of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server_process import TINY_LLAMA, ServerProcess, serve, serve_fake


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A tiny llama with random weights, served as "tiny"; 512 tokens of context."""
    with serve(TINY_LLAMA, "--served-model-name", "tiny") as process:
        yield process


@pytest.fixture(scope="session")
def echo_server() -> Iterator[ServerProcess]:
    """A model that says its prompt again, one token every 2 ms."""
    with serve_fake("--step-seconds", "0.002", "--max-num-seqs", "64") as process:
        yield process
