"""Tiny checkpoints with recurrent layers or experts in native code, on every ISA level: what transformers computes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tiny_models import Chunk, make_batch, open_tiny, read_reference

from octavo.cache_spec import StateGroupSpec
from octavo.models.decoder import build_program
from octavo.program.native import NativeProgram
from octavo.program.ops import Program
from octavo.weights.store import load_weights

MAX_LOGIT_ERROR = 1e-4
"""In standard deviations of the logits, on the float path."""

MAX_TIMES_FURTHER = 4
"""From double precision than transformers, where both are far: errors that grow a thousandfold are a matter of luck."""

NAMES = [
    *("qwen3_5_text", "qwen3_5_08b_ratio", "qwen3_5_vlm", "qwen3_5_moe", "qwen3_next"),
    *("qwen3_5_odd", "qwen3_5_moe_odd", "qwen3_next_odd"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "glm4_moe"),
]


def make_native(name: str, module: Any) -> tuple[Program, NativeProgram]:
    model = open_tiny(name)
    program = build_program(model.spec, max_model_len=128, block_size=16, cache_dtype="float32")
    weights = load_weights(program, model.checkpoint, pack=module.PackedMatrix.pack)
    native = NativeProgram(
        program,
        weights,
        cache_groups=program.cache_groups,
        pools=[np.zeros(4 * group.block_bytes, np.uint8) for group in program.cache_groups],
        max_num_tokens=64,
        max_num_seqs=2,
        max_model_len=128,
        num_threads=2,
        activation_quantization=False,
        isa_module=module,
    )
    return program, native


def run(program: Program, native: NativeProgram, start: int, token_ids: list[int]) -> np.ndarray:
    """Return the logits of one chunk of the only request."""
    tables = [[2] if isinstance(group, StateGroupSpec) else [3, 1, 2] for group in program.cache_groups]
    native.run(make_batch(program, [Chunk(start, token_ids, tables)]))
    return native.logits(np.arange(len(token_ids), dtype=np.int32))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(module: ModuleType, name: str) -> None:
    reference = read_reference(name)
    logits = run(*make_native(name, module), 0, reference.input_ids)
    assert np.abs(logits - reference.logits).max() <= MAX_LOGIT_ERROR * reference.logits.std()


def test_float32_is_no_coarser_than_transformers_where_it_is_too_coarse(module: ModuleType) -> None:
    reference = read_reference("qwen3_5_small_states")
    exact = reference.double_logits
    assert exact is not None
    assert np.abs(reference.logits - exact).max() > MAX_LOGIT_ERROR * exact.std(), "transformers' own error"
    logits = run(*make_native("qwen3_5_small_states", module), 0, reference.input_ids)
    assert np.square(logits - exact).mean() <= MAX_TIMES_FURTHER**2 * np.square(reference.logits - exact).mean()


@pytest.mark.parametrize("name", [*NAMES, "qwen3_5_small_states"])
def test_greedy_ids_are_those_of_transformers(module: ModuleType, name: str) -> None:
    reference = read_reference(name)
    model = make_native(name, module)
    output: list[int] = []
    start, token_ids = 0, reference.prompt_ids
    for _ in reference.greedy_ids:
        logits = run(*model, start, token_ids)
        start += len(token_ids)
        token_ids = [int(logits[-1].argmax())]
        output += token_ids
    assert output == reference.greedy_ids
