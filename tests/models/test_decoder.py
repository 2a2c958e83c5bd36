"""Every architecture of the registry, as a program run by the oracle, against transformers' logits and greedy ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tiny_gguf import write_tiny_gguf
from tiny_models import (
    TINY_MODELS,
    Chunk,
    Model,
    TinyReference,
    make_batch,
    open_gguf_model,
    open_tiny,
    read_hidden_states,
    read_reference,
)

from octavo.cache_spec import StateGroupSpec
from octavo.formats.gguf import open_gguf
from octavo.models.decoder import build_program
from octavo.models.registry import GGUF_ARCHITECTURES, HF_ARCHITECTURES
from octavo.program.reference import ReferenceExecutor
from octavo.weights.oracle import reference_weights
from octavo.weights.quantization import quantized_checkpoint

MAX_LOGIT_ERROR = 1e-4
"""In standard deviations of the logits: float32 sums in another order make 1e-5, the smallest bug 0.3."""

NUM_BLOCKS = 12

CASES = [(architecture, name) for architecture, names in TINY_MODELS.items() for name in names]
GGUF_CASES = {
    "gemma": ["gemma"],
    "gemma2": ["gemma2"],
    "gemma3": ["gemma3_text"],
    "glm4": ["glm4"],
    "granite": ["granite"],
    "granitemoe": ["granitemoe"],
    "llama": ["llama3_rope", "llama_yarn", "llama_linear", "mixtral"],
    "olmo2": ["olmo2", "olmo3"],
    "olmoe": ["olmoe"],
    "phi3": ["phi3", "phi4_longrope"],
    "qwen2": ["qwen2"],
    "qwen2moe": ["qwen2_moe"],
    "qwen3": ["qwen3"],
    "qwen3moe": ["qwen3_moe"],
    "qwen35": ["qwen3_5_text", "qwen3_5_08b_ratio"],
    "qwen35moe": ["qwen3_5_moe"],
    "smollm3": ["smollm3"],
}


def make_executor(model: Model) -> ReferenceExecutor:
    program = build_program(model.spec, max_model_len=128, block_size=16, cache_dtype="float32")
    weights = reference_weights(program, model.checkpoint)
    return ReferenceExecutor(program, weights, [NUM_BLOCKS] * len(program.cache_groups))


def make_blocks(executor: ReferenceExecutor, first: int = 1, count: int = 4) -> list[list[int]]:
    """Return a table for each group, with blocks out of order; of recurrent states one slot."""
    tables = [first + (3 * i) % count for i in range(count)]
    groups = executor.program.cache_groups
    return [tables[:1] if isinstance(group, StateGroupSpec) else list(tables) for group in groups]


def run_chunks(executor: ReferenceExecutor, token_ids: list[int], cuts: list[int]) -> npt.NDArray[np.float32]:
    """Return the logits of all tokens, computed in one step for each chunk between the cuts."""
    blocks = make_blocks(executor)
    logits = []
    for start, end in zip([0, *cuts], [*cuts, len(token_ids)], strict=True):
        executor.run_body(make_batch(executor.program, [Chunk(start, token_ids[start:end], blocks)]))
        logits.append(executor.run_head(np.arange(end - start, dtype=np.int32)))
    return np.concatenate(logits)


def logit_error(logits: npt.NDArray[np.float32], reference: TinyReference) -> float:
    return float(np.abs(logits - reference.logits).max() / reference.logits.std())


def test_every_architecture_has_a_tiny_checkpoint() -> None:
    assert set(TINY_MODELS) == set(HF_ARCHITECTURES)
    assert set(GGUF_CASES) == set(GGUF_ARCHITECTURES)


@pytest.mark.parametrize(("architecture", "name"), CASES)
def test_logits_are_those_of_transformers(architecture: str, name: str) -> None:
    reference = read_reference(name)
    logits = run_chunks(make_executor(open_tiny(name, architecture)), reference.input_ids, [])
    assert logit_error(logits, reference) < MAX_LOGIT_ERROR


@pytest.mark.parametrize(("architecture", "name"), CASES)
def test_greedy_ids_are_those_of_transformers(architecture: str, name: str) -> None:
    reference = read_reference(name)
    executor = make_executor(open_tiny(name, architecture))
    blocks = make_blocks(executor)
    output: list[int] = []
    start, token_ids = 0, reference.prompt_ids
    for _ in reference.greedy_ids:
        executor.run_body(make_batch(executor.program, [Chunk(start, token_ids, blocks)]))
        logits = executor.run_head(np.array([len(token_ids) - 1], dtype=np.int32))
        start += len(token_ids)
        token_ids = [int(logits[0].argmax())]
        output += token_ids
    assert output == reference.greedy_ids


HIDDEN_CASES = [
    *("llama", "llama3_rope", "gemma", "gemma2", "gemma3_text", "granite", "olmo3", "phi3"),
    *("qwen2", "qwen3", "qwen3_moe", "qwen3_5_text"),
]


@pytest.mark.parametrize("name", HIDDEN_CASES)
def test_pooled_rows_are_the_last_hidden_states_of_transformers(name: str) -> None:
    executor, expected = make_executor(open_tiny(name)), read_hidden_states(name)
    token_ids = read_reference(name).input_ids
    executor.run_body(make_batch(executor.program, [Chunk(0, token_ids, make_blocks(executor))]))
    states = executor.run_pool(np.arange(len(token_ids), dtype=np.int32))
    assert np.abs(states - expected).max() < MAX_LOGIT_ERROR * expected.std()


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mistral", "qwen3_5_text"])
@pytest.mark.parametrize("cuts", [list(range(1, 48)), [5, 21], [16, 32]], ids=["each", "odd", "blocks"])
def test_prompt_in_chunks_gives_the_logits_of_the_whole(name: str, cuts: list[int]) -> None:
    reference = read_reference(name)
    logits = run_chunks(make_executor(open_tiny(name)), reference.input_ids, cuts)
    assert logit_error(logits, reference) < MAX_LOGIT_ERROR


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_5_08b_ratio"])
def test_requests_of_one_step_do_not_see_each_other(name: str) -> None:
    reference = read_reference(name)
    executor = make_executor(open_tiny(name))
    ids, other_ids = reference.input_ids, list(reversed(reference.input_ids))
    mine, others = make_blocks(executor), make_blocks(executor, first=6)
    executor.run_body(make_batch(executor.program, [Chunk(0, other_ids[:7], others), Chunk(0, ids[:20], mine)]))
    executor.run_body(make_batch(executor.program, [Chunk(20, ids[20:], mine), Chunk(7, other_ids[7:9], others)]))
    logits = executor.run_head(np.arange(28, dtype=np.int32))
    assert np.abs(logits - reference.logits[20:]).max() / reference.logits.std() < MAX_LOGIT_ERROR


def test_block_that_a_window_left_behind_is_not_read() -> None:
    reference = read_reference("gemma3_text")
    executor = make_executor(open_tiny("gemma3_text"))
    blocks = make_blocks(executor)
    program = executor.program
    executor.run_body(make_batch(program, [Chunk(0, reference.input_ids[:40], blocks)]))
    sliding = next(group for group, spec in enumerate(program.cache_groups) if spec.window == 8)
    freed = blocks[sliding][:2]
    executor.caches[sliding].k[freed] = executor.caches[sliding].v[freed] = np.nan
    blocks[sliding][:2] = [-1, -1]
    executor.run_body(make_batch(program, [Chunk(40, reference.input_ids[40:], blocks)]))
    logits = executor.run_head(np.arange(8, dtype=np.int32))
    assert np.abs(logits - reference.logits[40:]).max() / reference.logits.std() < MAX_LOGIT_ERROR


def test_layers_with_the_same_window_share_a_cache_group() -> None:
    spec = open_tiny("gemma3_text").spec
    program = build_program(spec, max_model_len=64, block_size=32, cache_dtype="float16")
    groups = [(g.kind, g.num_layers, g.window, g.num_kv_heads, g.head_dim, g.block_size) for g in program.cache_groups]
    assert groups == [("sliding", 5, 8, 2, 32, 32), ("full", 1, None, 2, 32, 32)]


def test_tied_head_reads_the_embedding() -> None:
    spec = open_tiny("llama").spec
    program = build_program(spec, max_model_len=64, block_size=16, cache_dtype="float16")
    assert program.head[-1].weights == program.body[0].weights


@pytest.mark.parametrize(("arch", "name"), [(arch, name) for arch, names in GGUF_CASES.items() for name in names])
def test_gguf_of_a_checkpoint_gives_its_logits(arch: str, name: str, tmp_path: Path) -> None:
    reference = read_reference(name)
    model = open_gguf_model(open_gguf(write_tiny_gguf(tmp_path / "model.gguf", name, arch)))
    logits = run_chunks(make_executor(model), reference.input_ids, [])
    assert logit_error(logits, reference) < MAX_LOGIT_ERROR


@pytest.mark.parametrize(
    ("arch", "name"), [("llama", "llama3_rope"), ("gemma3", "gemma3_text"), ("qwen35", "qwen3_5_text")]
)
def test_gguf_of_a_checkpoint_gives_its_hidden_states(arch: str, name: str, tmp_path: Path) -> None:
    executor = make_executor(open_gguf_model(open_gguf(write_tiny_gguf(tmp_path / "model.gguf", name, arch))))
    expected = read_hidden_states(name)
    executor.run_body(make_batch(executor.program, [Chunk(0, read_reference(name).input_ids, make_blocks(executor))]))
    states = executor.run_pool(np.arange(len(expected), dtype=np.int32))
    assert np.abs(states - expected).max() < MAX_LOGIT_ERROR * expected.std()


SAME_SPEC = {
    "gemma": "gemma",
    "gemma2": "gemma2",
    "glm4": "glm4",
    "olmo2": "olmo3",
    "smollm3": "smollm3",
    "gemma3": "gemma3_text",
    "granitemoe": "granitemoe",
    "llama": "llama_yarn",
    "olmoe": "olmoe",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
}


@pytest.mark.parametrize(("arch", "name"), SAME_SPEC.items())
def test_gguf_of_a_checkpoint_gives_its_spec(arch: str, name: str, tmp_path: Path) -> None:
    model = open_gguf_model(open_gguf(write_tiny_gguf(tmp_path / "model.gguf", name, arch)))
    assert model.spec == open_tiny(name).spec


@pytest.mark.parametrize("name", ["llama3_rope", "llama_yarn"])
def test_floats_of_a_gguf_file_are_quantised_like_those_of_safetensors(tmp_path: Path, name: str) -> None:
    from_gguf = open_gguf_model(open_gguf(write_tiny_gguf(tmp_path / "model.gguf", name, "llama"))).checkpoint
    quantised = quantized_checkpoint(from_gguf, "q4").tensors
    for tensor_name, tensor in quantized_checkpoint(open_tiny(name).checkpoint, "q4").tensors.items():
        assert quantised[tensor_name].values().tobytes() == tensor.values().tobytes()
