"""What is advised about a request that is too long can be done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny_models import TINY_DIR

from octavo import LLM, ConfigError, EngineConfig, RequestError
from octavo.bench.session import BenchSession
from octavo.bench.workload import WorkItem
from octavo.frontend.length_advice import way_to_more_length
from octavo.frontend.resolve import resolve, scheduler_config

LLAMA = str(TINY_DIR / "llama")
MODEL_LEN = 512


def advise(length: int, has_config: bool = True, **options: Any) -> str:
    """Return the advice where a length was decided on."""
    config = EngineConfig(LLAMA, **options)
    model = resolve(config).model
    if not has_config:
        model = replace(model, beside_weights=object())  # type: ignore[arg-type]
    return way_to_more_length(config, model, scheduler_config(config, length))


@pytest.mark.parametrize(
    ("length", "options", "advice"),
    [
        (64, {"max_model_len": 64}, "raise max_model_len"),
        (64, {"max_model_len": "auto"}, "raise kv_cache_memory_bytes"),
        (64, {"max_model_len": "auto", "num_gpu_blocks_override": 4}, "raise num_gpu_blocks_override"),
        (
            64,
            {"max_model_len": "auto", "enable_chunked_prefill": False, "max_num_batched_tokens": 64},
            "raise max_num_batched_tokens",
        ),
    ],
    ids=["set", "cache", "blocks", "step"],
)
def test_a_length_below_the_models_is_raised_by_what_keeps_it_there(
    length: int, options: dict[str, Any], advice: str
) -> None:
    assert advise(length, **options) == advice


@pytest.mark.parametrize("options", [{}, {"max_model_len": MODEL_LEN}, {"max_model_len": "auto"}], ids=str)
def test_the_models_own_length_is_not_raised(options: dict[str, Any]) -> None:
    assert "made for longer texts, or extend this one's rope scaling with hf_overrides" in advise(MODEL_LEN, **options)
    assert advise(MODEL_LEN, has_config=False, **options) == "use a model that was made for longer texts"


def test_a_refused_prompt_gets_the_advice() -> None:
    with LLM(LLAMA, num_threads=1) as llm, pytest.raises(RequestError) as refused:
        llm.generate([[5] * MODEL_LEN], use_tqdm=False)
    assert "shorten the prompt, or use a model that was made for longer texts" in str(refused.value)
    assert "max_model_len" not in str(refused.value)


def test_a_benchmark_without_room_gets_the_advice() -> None:
    with (
        BenchSession(LLAMA, {"num_threads": 1}) as session,
        pytest.raises(ConfigError, match="or use a model that was"),
    ):
        session.run([WorkItem([5] * MODEL_LEN, 4)])
