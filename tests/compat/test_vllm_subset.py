"""Names, order and defaults that programs written for vLLM rely on, as data."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import Mock

import pytest

import octavo
from octavo.engine_options import EngineOptions
from octavo.frontend import build

REQUIRED = inspect.Parameter.empty

SAMPLING_PARAMS: dict[str, Any] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "flat_logprobs": False,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "output_kind": octavo.RequestOutputKind.CUMULATIVE,
    "structured_outputs": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "logprob_token_ids": None,
    "prompt_logprob_token_ids": None,
    "prompt_logprob_start": None,
}

POOLING_PARAMS: dict[str, Any] = {
    "use_activation": None,
    "dimensions": None,
    "step_tag_id": None,
    "returned_token_ids": None,
    "task": None,
    "requires_token_ids": False,
    "skip_reading_prefix_cache": None,
    "late_interaction_params": None,
    "extra_kwargs": None,
    "output_kind": octavo.RequestOutputKind.FINAL_ONLY,
}

ENGINE_OPTIONS: dict[str, Any] = {
    "tokenizer": None,
    "revision": None,
    "download_dir": None,
    "dtype": "auto",
    "quantization": None,
    "use_tqdm_on_load": True,
    "max_model_len": None,
    "max_num_seqs": None,
    "max_num_batched_tokens": None,
    "scheduling_policy": "fcfs",
    "kv_cache_dtype": "auto",
    "kv_cache_memory_bytes": None,
    "num_gpu_blocks_override": None,
    "seed": 0,
    "max_logprobs": 20,
    "logprobs_mode": "raw_logprobs",
    "generation_config": "auto",
}

SIGNATURES: dict[str, dict[str, Any]] = {
    "generate": {
        "prompts": REQUIRED,
        "sampling_params": None,
        "use_tqdm": True,
        "lora_request": None,
        "priority": None,
        "tokenization_kwargs": None,
        "mm_processor_kwargs": None,
    },
    "chat": {
        "messages": REQUIRED,
        "sampling_params": None,
        "use_tqdm": True,
        "lora_request": None,
        "priority": None,
        "chat_template": None,
        "chat_template_content_format": "auto",
        "add_generation_prompt": True,
        "continue_final_message": False,
        "tools": None,
        "chat_template_kwargs": None,
        "tokenization_kwargs": None,
        "mm_processor_kwargs": None,
    },
    "embed": {
        "prompts": REQUIRED,
        "use_tqdm": True,
        "pooling_params": None,
        "lora_request": None,
        "tokenization_kwargs": None,
    },
    "score": {
        "data_1": REQUIRED,
        "data_2": REQUIRED,
        "use_tqdm": True,
        "pooling_params": None,
        "lora_request": None,
        "tokenization_kwargs": None,
        "chat_template": None,
    },
    "beam_search": {
        "prompts": REQUIRED,
        "params": REQUIRED,
        "lora_request": None,
        "use_tqdm": False,
        "concurrency_limit": None,
    },
    "reset_prefix_cache": {"reset_running_requests": False, "reset_connector": False},
    "get_tokenizer": {},
    "get_default_sampling_params": {},
    "get_metrics": {},
}

FIELDS: dict[type, list[str]] = {
    octavo.RequestOutput: [
        "request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished", "metrics", "lora_request",
        "encoder_prompt", "encoder_prompt_token_ids", "num_cached_tokens",
    ],
    octavo.CompletionOutput: [
        "index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason",
    ],
    octavo.Logprob: ["logprob", "rank", "decoded_token"],
    octavo.EmbeddingRequestOutput: [
        "request_id", "outputs", "prompt_token_ids", "num_cached_tokens", "finished", "error",
    ],
    octavo.EmbeddingOutput: ["embedding"],
    octavo.ScoringOutput: ["score"],
}  # fmt: skip


def parameters(function: Any) -> dict[str, Any]:
    return {name: p.default for name, p in inspect.signature(function).parameters.items() if name != "self"}


@pytest.mark.parametrize("name", SIGNATURES)
def test_methods_of_llm_take_vllms_arguments(name: str) -> None:
    ours = parameters(getattr(octavo.LLM, name))
    assert list(ours.items())[: len(SIGNATURES[name])] == list(SIGNATURES[name].items())


def test_sampling_params_have_vllms_names_order_and_defaults() -> None:
    ours = parameters(octavo.SamplingParams.__init__)
    shared = {name: default for name, default in ours.items() if name in SAMPLING_PARAMS}
    assert list(shared.items()) == list(SAMPLING_PARAMS.items())


def test_pooling_params_have_vllms_names_order_and_defaults() -> None:
    assert list(parameters(octavo.PoolingParams.__init__).items()) == list(POOLING_PARAMS.items())


def test_engine_options_have_vllms_names_and_defaults() -> None:
    ours = {entry.name: entry.default for entry in dataclasses.fields(octavo.EngineConfig)}
    assert {name: ours.get(name, "missing") for name in ENGINE_OPTIONS} == ENGINE_OPTIONS


def test_the_options_that_editors_offer_are_those_of_the_config() -> None:
    assert {**get_type_hints(EngineOptions), "model": str} == get_type_hints(octavo.EngineConfig)


@pytest.mark.parametrize("name", ["EngineArgs", "AsyncEngineArgs"])
def test_engine_args_are_the_config_under_vllms_name(name: str) -> None:
    args = getattr(octavo, name)("m", max_num_seqs=4, trust_remote_code=True, tensor_parallel_size=1)
    assert args == octavo.EngineConfig("m", max_num_seqs=4)


MAKERS: list[Callable[..., Any]] = [
    octavo.LLM, octavo.EngineArgs, octavo.AsyncEngineArgs, partial(dataclasses.replace, octavo.EngineArgs("m")),
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=["LLM", "EngineArgs", "AsyncEngineArgs", "replace"])
def test_whoever_takes_options_says_alike_what_is_wrong_with_one(make: Callable[..., Any]) -> None:
    with pytest.raises(octavo.ConfigError, match=r"tensor_parallel_size=2 is not supported, only 1: .*num_threads"):
        make(model="m", tensor_parallel_size=2)
    with pytest.raises(TypeError, match="unknown engine option 'max_modle_len'; did you mean 'max_model_len'"):
        make(model="m", max_modle_len=2)
    with pytest.raises(octavo.ConfigError, match="model must be a non-empty string, got None"):
        make(model=None)


def test_the_signature_of_engine_args_lists_every_option() -> None:
    assert list(parameters(octavo.EngineArgs)) == [entry.name for entry in dataclasses.fields(octavo.EngineConfig)]


def test_prompts_may_be_made_with_vllms_names() -> None:
    assert octavo.TextPrompt(prompt="a", cache_salt="b") == {"prompt": "a", "cache_salt": "b"}
    assert octavo.TokensPrompt(prompt_token_ids=[1]) == {"prompt_token_ids": [1]}


@pytest.mark.parametrize("cls", FIELDS, ids=lambda cls: cls.__name__)
def test_outputs_have_vllms_fields_in_order(cls: type) -> None:
    names = [entry.name for entry in dataclasses.fields(cls)]
    assert names[: len(FIELDS[cls])] == FIELDS[cls]


def test_output_kinds_have_vllms_values() -> None:
    assert {kind.name: kind.value for kind in octavo.RequestOutputKind} == {
        "CUMULATIVE": 0,
        "DELTA": 1,
        "FINAL_ONLY": 2,
    }


@pytest.mark.parametrize(
    "name", ["add_request", "step", "abort_request", "has_unfinished_requests", "from_engine_args"]
)
def test_the_low_level_engine_has_vllms_methods(name: str) -> None:
    assert callable(getattr(octavo.LLMEngine, name))


@pytest.mark.parametrize("cls", [octavo.AsyncLLM, octavo.LLMEngine], ids=lambda cls: cls.__name__)
def test_engines_are_made_with_vllms_arguments(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[octavo.EngineConfig] = []
    monkeypatch.setattr(build, "build_engine", built.append)
    monkeypatch.setattr(cls, "__init__", Mock(return_value=None))
    args = octavo.EngineArgs("m")
    cls.from_engine_args(args, usage_context="api", stat_loggers=None)
    with pytest.raises(octavo.ConfigError, match=r"stat_loggers is not supported: .*get_metrics\(\)"):
        cls.from_engine_args(args, stat_loggers=[object])
    with pytest.raises(TypeError, match="'max_num_seqs'"):
        cls.from_engine_args(args, max_num_seqs=2)
    assert built == [args]


def import_rows() -> list[tuple[str, ...]]:
    """The table of docs/compatibility.md: a module of vLLM's, its names that are ours too, what there is instead."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    table = guide.split("## Imports\n")[1].split("\n## ")[0]
    rows = [
        tuple(cell.strip() for cell in line.split("|")[1:4])
        for line in table.splitlines()
        if line.startswith("| `vllm")
    ]
    assert rows
    return rows


@pytest.mark.parametrize("row", import_rows(), ids=lambda row: row[0].strip("`"))
def test_what_the_guide_to_imports_names_is_there(row: tuple[str, ...]) -> None:
    _, shared, instead = row
    assert shared or instead
    assert {*re.findall(r"`(\w+)`", shared), *re.findall(r"`octavo\.(\w+)`", instead)} <= set(octavo.__all__)


def test_the_guide_to_imports_names_all_that_vllm_has_too() -> None:
    own = {"ConfigError", "EngineConfig", "ModelLoadError", "NativeError", "OctavoError", "OutputError",
           "QueueFullError", "RequestError", "RequestTimeoutError", "__version__"}  # fmt: skip
    named = {name for _, shared, _ in import_rows() for name in re.findall(r"`(\w+)`", shared)}
    assert named == set(octavo.__all__) - own
