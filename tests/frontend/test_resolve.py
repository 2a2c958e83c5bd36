from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from octavo import ConfigError, EngineConfig, ModelLoadError, SamplingParams
from octavo.frontend.fingerprint import numeric_fingerprint
from octavo.frontend.generation_defaults import default_sampling_params
from octavo.frontend.resolve import cache_bytes, load_tokenizer, resolve, scheduler_config

TINY = Path(__file__).parents[1] / "data" / "tiny"
LLAMA = str(TINY / "llama")


def make_config(model: str = LLAMA, **options: Any) -> EngineConfig:
    return EngineConfig(model, **options)


def test_defaults_are_filled_in() -> None:
    resolved = resolve(make_config())
    assert resolved.max_model_len == resolved.model.spec.max_positions == resolved.longest
    assert resolved.cache_dtype == "float16"
    assert resolved.num_threads >= 1


def test_options_are_kept() -> None:
    resolved = resolve(make_config(max_model_len=100, num_threads=3, kv_cache_dtype="bfloat16"))
    assert (resolved.max_model_len, resolved.num_threads, resolved.cache_dtype) == (100, 3, "bfloat16")


def test_auto_length_is_left_to_the_cache() -> None:
    resolved = resolve(make_config(max_model_len="auto"))
    assert resolved.max_model_len is None
    assert resolved.longest == resolved.model.spec.max_positions


def test_more_than_the_models_length_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len \(999999\) is more than the"):
        resolve(make_config(max_model_len=999_999))


@pytest.mark.parametrize("options", [{}, {"max_model_len": "auto"}], ids=["default", "auto"])
def test_a_context_whose_rotations_exceed_the_memory_is_refused_with_the_way_out(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.frontend.resolve.available_memory_bytes", lambda: 1 << 30)
    absurd = {"max_position_embeddings": 1 << 27}
    with pytest.raises(ConfigError, match=r"134217728 tokens takes .*; 1073741824 bytes .* set max_model_len, below"):
        resolve(make_config(hf_overrides=absurd, **options))
    assert resolve(make_config(hf_overrides=absurd, max_model_len=4096)).longest == 4096


def test_overrides_reach_the_config_and_merge_into_dicts() -> None:
    spec = resolve(make_config(hf_overrides={"max_position_embeddings": 77})).model.spec
    assert spec.max_positions == 77


def test_an_override_to_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="Nonsense"):
        resolve(make_config(hf_overrides={"architectures": ["Nonsense"]}))


def test_the_tokenizer_may_come_from_elsewhere() -> None:
    config = make_config(tokenizer=str(TINY / "qwen3"))
    tokenizer = load_tokenizer(config, resolve(config).model)
    assert "qwen3" in tokenizer.name_or_path


@pytest.mark.parametrize(
    ("options", "seats", "budget", "threshold"),
    [
        ({}, 256, 512, 256),
        ({"max_num_seqs": 1000}, 1000, 1000, 500),
        ({"max_num_batched_tokens": 64}, 64, 64, 32),
        ({"max_num_batched_tokens": 1}, 1, 1, 1),
        ({"long_prefill_token_threshold": 0}, 256, 512, 0),
        ({"enable_chunked_prefill": False}, 256, 2048, 1024),
    ],
    ids=["default", "many-seats", "small-budget", "budget-of-one", "no-threshold", "whole-prompts"],
)
def test_seats_and_budget_follow_each_other(options: dict[str, Any], seats: int, budget: int, threshold: int) -> None:
    resolved = scheduler_config(make_config(**options), 2048)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (seats, budget)
    assert resolved.long_prefill_token_threshold == threshold


def test_whole_prompts_need_a_budget_for_the_longest() -> None:
    with pytest.raises(ConfigError, match="must be at least max_model_len"):
        scheduler_config(make_config(enable_chunked_prefill=False, max_num_batched_tokens=512), 2048)


def test_the_cache_takes_a_share_of_what_is_available() -> None:
    assert cache_bytes(make_config(), 1000) == 400
    assert cache_bytes(make_config(gpu_memory_utilization=0.5), 1000) == 500
    assert cache_bytes(make_config(kv_cache_memory_bytes=7), 1000) == 7
    assert cache_bytes(make_config(), -1) == 0


def make_model_dir(tmp_path: Path, values: dict[str, Any]) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    return tmp_path


def test_the_models_generation_config_is_the_default(tmp_path: Path) -> None:
    folder = make_model_dir(tmp_path, {"temperature": 0.6, "top_k": 20, "max_new_tokens": 99, "do_sample": True})
    params = default_sampling_params(make_config(), folder)
    assert params == SamplingParams(temperature=0.6, top_k=20, max_tokens=99)


@pytest.mark.parametrize("null", ["temperature", "top_p"])
def test_null_entries_are_as_if_absent(tmp_path: Path, null: str) -> None:
    assert default_sampling_params(make_config(), make_model_dir(tmp_path, {null: None})) == SamplingParams()


def test_the_generation_config_may_be_ignored_replaced_or_overridden(tmp_path: Path) -> None:
    folder = make_model_dir(tmp_path, {"temperature": 0.6})
    assert default_sampling_params(make_config(generation_config="vllm"), folder) == SamplingParams()
    elsewhere = default_sampling_params(make_config(generation_config=str(folder)), None)
    assert elsewhere.temperature == 0.6
    overridden = make_config(override_generation_config={"temperature": 0.1})
    assert default_sampling_params(overridden, folder).temperature == 0.1


def test_a_generation_config_that_cannot_be_used_names_the_way_around(tmp_path: Path) -> None:
    folder = make_model_dir(tmp_path, {"temperature": -1})
    with pytest.raises(ConfigError, match="generation_config='vllm'"):
        default_sampling_params(make_config(), folder)
    with pytest.raises(ConfigError, match="does not exist"):
        default_sampling_params(make_config(generation_config=str(tmp_path / "missing")), None)


def test_the_fingerprint_follows_weights_and_options(tmp_path: Path) -> None:
    checkpoint = resolve(make_config()).model.checkpoint
    other = resolve(make_config(str(TINY / "qwen3"))).model.checkpoint
    copied = resolve(make_config(shutil.copytree(LLAMA, tmp_path / "copy").as_posix())).model.checkpoint
    facts = {"isa": "avx2", "kv_cache_dtype": "float16"}
    same = numeric_fingerprint(checkpoint=checkpoint, **facts)
    assert numeric_fingerprint(checkpoint=copied, **facts) == same
    changed = [
        numeric_fingerprint(checkpoint=other, **facts),
        numeric_fingerprint(checkpoint=checkpoint, **{**facts, "kv_cache_dtype": "float32"}),
        numeric_fingerprint(checkpoint=checkpoint, **{**facts, "isa": "generic"}),
        numeric_fingerprint(**facts),
    ]
    assert len({same, *changed}) == 5
