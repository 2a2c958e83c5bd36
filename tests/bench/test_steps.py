"""Programs that are measured without an engine: made as an engine makes them, in memory that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bench import steps
from octavo.bench.steps import LoadedProgram, decode_step, load_program, measure_steps
from octavo.cache_spec import StateGroupSpec
from octavo.config import EngineConfig
from octavo.errors import ConfigError

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"


def load_tiny(name: str, **options: object) -> LoadedProgram:
    return load_program(EngineConfig(str(TINY / name), num_threads=1, **options), longest=16)  # type: ignore[arg-type]


@pytest.mark.parametrize("caching", [False, True])
def test_states_keep_their_border_only_where_prefixes_are_cached(caching: bool) -> None:
    state = load_tiny("qwen3_5_text", enable_prefix_caching=caching).program.cache_groups[-1]
    assert isinstance(state, StateGroupSpec)
    assert state.keeps_border is caching


def test_steps_whose_cache_does_not_fit_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_tiny("llama")
    (group,) = loaded.program.cache_groups
    monkeypatch.setattr(steps, "available_memory_bytes", lambda: 8 * group.block_bytes, raising=False)
    assert len(measure_steps(loaded, [decode_step(2, 32)], min_seconds=0.0)) == 1
    with pytest.raises(ConfigError, match=f"takes .* bytes, {8 * group.block_bytes} are available"):
        measure_steps(loaded, [decode_step(4, 32)], min_seconds=0.0)
