from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from octavo import ConfigError, EngineConfig
from octavo.vllm_options import HARMLESS, UNSUPPORTED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 17}, "block_size must be one of"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype must be one of 'auto'.*got 'int4'\\.$"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype must be one of 'auto'"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "got 'fp8_e4m3'; for 8 bits use \"int8\""),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"scheduling_policy": "random"}, "scheduling_policy"),
        ({"max_model_len": 0}, "max_model_len must be an integer in"),
        ({"max_model_len": "long"}, "max_model_len must be a whole number"),
        ({"max_model_len": "1.23456k"}, "max_model_len must be a whole number"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, r"max_num_batched_tokens \(8\) must be at least"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override"),
        ({"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be True or False"),
        ({"seed": 2**63}, "seed"),
        ({"hf_overrides": [1]}, "hf_overrides must be a dict"),
        ({"num_threads": 0}, "num_threads"),
        ({"num_gpu_blocks_override": 2**31 - 1}, "num_gpu_blocks_override must be an integer in"),
        ({"block_size": 16.0}, "block_size must be an integer"),
        ({"tokenizer": 5}, "tokenizer must be a non-empty string"),
        ({"tokenizer": ""}, "tokenizer must be a non-empty string"),
        ({"revision": 5}, "revision must be a non-empty string"),
        ({"download_dir": 5}, "download_dir must be a non-empty string"),
        ({"max_logprobs": -2}, "max_logprobs"),
        ({"target_itl_ms": 0}, "target_itl_ms must be a positive number"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not supported, only 1: .* set num_threads"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size=True is not supported, only 1"),
        ({"device": "cuda"}, "device='cuda' is not supported, only 'auto' or 'cpu'"),
        ({"quantization": "aqlm"}, "quantization='aqlm' is not supported: such checkpoints .* quantization='q4'"),
        ({"quantization": "awq"}, "quantization='awq' is not supported: leave it out: a checkpoint's config"),
        ({"quantization": "fp8"}, "quantization='fp8' is not supported: use 'q8'"),
        ({"quantization": "q5"}, "quantization must be one of 'q8', 'q4', got 'q5'"),
        ({"quantization": 4}, "quantization must be one of 'q8', 'q4', got 4"),
        ({"enable_lora": True}, "merge the adapter"),
        ({"speculative_config": {}}, "not supported yet"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_that_cannot_work_is_refused_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig("m", **options)


def test_quantization_is_kept_and_vllms_name_for_gguf_files_asks_for_nothing() -> None:
    options = [{"quantization": name} for name in ("q8", "q4", "gguf", None)]
    assert [EngineConfig("m", **given).quantization for given in options] == ["q8", "q4", None, None]


def test_an_option_by_its_place_is_what_it_is_by_its_name() -> None:
    names = [entry.name for entry in dataclasses.fields(EngineConfig)]
    assert EngineConfig("m", *[None] * (len(names) - 1)) == EngineConfig("m")
    place = names.index("quantization")
    assert EngineConfig("m", *[None] * (place - 1), "gguf") == EngineConfig("m")
    with pytest.raises(TypeError, match="multiple values for argument 'model'"):
        EngineConfig("m", model="m")
    with pytest.raises(TypeError, match="positional arguments"):
        EngineConfig("m", *[None] * len(names))


def test_a_path_becomes_text() -> None:
    assert EngineConfig("m", download_dir=Path("models")).to_dict()["download_dir"] == "models"


def test_an_empty_model_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="model must be"):
        EngineConfig("")


def test_an_unknown_option_is_a_type_error_that_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'max_model_len'"):
        EngineConfig("m", max_model_lem=5)


def test_a_sampling_parameter_among_the_options_is_sent_to_its_place() -> None:
    with pytest.raises(TypeError, match=r"'max_tokens' is no engine option.*SamplingParams\(max_tokens="):
        EngineConfig("m", max_tokens=5)


@pytest.mark.parametrize(
    ("written", "read"),
    [("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("1.5M", 1_572_864), (7, 7), ("auto", "auto"), (-1, "auto")],
)
def test_max_model_len_may_have_a_suffix(written: Any, read: Any) -> None:
    assert EngineConfig("m", max_model_len=written).max_model_len == read


def test_harmless_options_give_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="octavo"):
        EngineConfig("m", enforce_eager=True, swap_space=4, trust_remote_code=True)
    assert len(caplog.records) == 1
    assert "no remote code is ever run" in caplog.text


def test_neutral_values_of_unsupported_options_are_accepted() -> None:
    for name, (values, _) in UNSUPPORTED.items():
        assert [EngineConfig("m", **{name: value}) for value in values] == [EngineConfig("m")] * len(values)


def test_none_is_the_default_of_every_option_and_asks_for_nothing_of_vllms() -> None:
    names = {*EngineConfig.__dataclass_fields__, *UNSUPPORTED, *HARMLESS} - {"model"}
    assert EngineConfig("m", **dict.fromkeys(names)) == EngineConfig("m")


def test_no_option_is_in_two_tables() -> None:
    own = set(EngineConfig.__dataclass_fields__)
    assert not own & HARMLESS.keys()
    assert not own & UNSUPPORTED.keys()
    assert not HARMLESS.keys() & UNSUPPORTED.keys()


def test_a_config_survives_json() -> None:
    config = EngineConfig("m", max_model_len="32k", hf_overrides={"rope_theta": 1e6}, kv_cache_memory_bytes="2G")
    assert EngineConfig(**json.loads(json.dumps(config.to_dict()))) == config
