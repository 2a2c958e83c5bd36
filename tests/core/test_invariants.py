"""Random lives of an engine: whatever happens, nothing leaks, nobody starves, and each request gives its own tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_life import ATTENTION, HYBRID, EngineLife
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

ACTIONS = ["add"] * 4 + ["advance"] * 8 + ["abort", "break_a_step", "reset_prefix_cache"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("windows", [ATTENTION, HYBRID], ids=["attention", "hybrid"])
def test_ten_thousand_random_actions_keep_all_promises(seed: int, windows: list) -> None:
    chooser = random.Random(seed)
    for _ in range(5):
        life = EngineLife(chooser.choice, windows)
        for _ in range(100):
            getattr(life, chooser.choice(ACTIONS))(chooser.choice)
        life.end()


class EngineMachine(RuleBasedStateMachine):
    """The same, chosen and made small by hypothesis."""

    @initialize(data=st.data())
    def start(self, data: Any) -> None:
        self.life = EngineLife(lambda options: data.draw(st.sampled_from(options)), ATTENTION + HYBRID)

    @rule(data=st.data(), action=st.sampled_from(ACTIONS))
    def act(self, data: Any, action: str) -> None:
        getattr(self.life, action)(lambda options: data.draw(st.sampled_from(options)))

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.end()


EngineMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestEngineMachine = EngineMachine.TestCase
