"""An engine holds the packed weights, the blocks in use, and little more; what it installs is small too."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.explain.model_report import AS_STORED, inspect_model

MB = 1_000_000
PACKED_OVER_FILE = 1.03
"""Packed weights are at most this multiple of the file's tensors (tests/kernels/test_pack.py)."""
SMAPS = Path("/proc/self/smaps_rollup")

LOAD_AND_ANSWER = """
import sys
from octavo import LLM, SamplingParams

def print_anonymous():
    (line,) = [line for line in open("/proc/self/smaps_rollup") if line.startswith("Anonymous:")]
    print(int(line.split()[1]) * 1024)

llm = LLM(sys.argv[1], max_model_len=1024)
llm.generate("The capital of France is", SamplingParams(temperature=1, max_tokens=4), use_tqdm=False)
print_anonymous()
llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
print_anonymous()
"""


@pytest.mark.skipif(not SMAPS.exists(), reason="needs Linux's smaps_rollup")
@pytest.mark.parametrize(("model", "rest"), [("smollm2_path", 150 * MB), ("gemma_path", 250 * MB)])
def test_anonymous_memory_is_that_of_the_weights_and_little_more(
    request: pytest.FixtureRequest, model: str, rest: int
) -> None:
    path = request.getfixturevalue(model)
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AND_ANSWER, str(path)], capture_output=True, text=True, check=True
    )
    after_sampling, after_greedy = map(int, done.stdout.split())
    limit = PACKED_OVER_FILE * path.stat().st_size + rest
    assert after_sampling <= limit
    screen = inspect_model(EngineConfig(str(path))).loads[AS_STORED].screen_bytes
    assert 0 < screen < path.stat().st_size
    assert after_greedy <= limit + screen


def test_an_installation_with_all_it_needs_takes_at_most_150_mb() -> None:
    try:
        importlib.metadata.distribution("octavo")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("octavo runs from its source tree")
    needed, seen = ["octavo"], set()
    total = 0
    while needed:
        name = needed.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement of another platform or Python
        total += sum(Path(file.locate()).stat().st_size for file in distribution.files or () if file.locate().is_file())
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement:
                needed.append(re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-"))
    assert {"numpy", "tokenizers", "click"} <= seen
    assert total <= 150 * MB
