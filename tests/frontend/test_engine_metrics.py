from __future__ import annotations

import pytest
from face_fakes import make_engine

from octavo import SamplingParams
from octavo.errors import StepCancelledError
from octavo.frontend.llm_engine import LLMEngine


def counters(engine: LLMEngine) -> dict[str, float]:
    return {metric.name: metric.value for metric in engine.get_metrics()}


def run_to_end(engine: LLMEngine) -> int:
    """Return how often requests had to begin anew."""
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return sum(output.metrics.num_preemptions for output in outputs if output.finished and output.metrics)


def test_a_step_that_was_cancelled_is_no_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, executor = make_engine()
    sample, calls = executor.sample, []

    def cancelled_once(*args: object) -> object:
        calls.append(args)
        if len(calls) == 3:
            raise StepCancelledError("stop")
        return sample(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(executor, "sample", cancelled_once)
    engine.add_request("a", "x" * 20, SamplingParams(temperature=0, max_tokens=5))
    assert run_to_end(engine) == 1
    assert counters(engine)["vllm:num_preemptions"] == counters(engine)["octavo:preempted_tokens"] == 0
    engine.close()


def test_values_that_the_cache_cannot_hold_are_counted_and_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    so_far = [0]
    engine, _ = make_engine(num_saturated=lambda: so_far[0])
    warnings = []
    for name, so_far[0] in (("a", 0), ("b", 7), ("c", 9)):
        engine.add_request(name, name * 20, SamplingParams(temperature=0, max_tokens=2))
        run_to_end(engine)
        warnings.append([record.message for record in caplog.records if "KV cache" in record.message])
    assert [len(found) for found in warnings] == [0, 1, 1]
    assert warnings[1][0].startswith("7 keys and values are too large for the KV cache")
    assert 'kv_cache_dtype="bfloat16"' in warnings[1][0]
    assert counters(engine)["octavo:kv_values_saturated"] == 9
    engine.close()


def test_requests_that_lack_blocks_are_counted_with_what_they_lose() -> None:
    engine, _ = make_engine(lambda _ids, _n: 65, num_blocks=5)
    for name in "ab":
        engine.add_request(name, name * 20, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    assert run_to_end(engine) == counters(engine)["vllm:num_preemptions"] >= 1
    assert counters(engine)["octavo:preempted_tokens"] >= 20
    engine.close()
