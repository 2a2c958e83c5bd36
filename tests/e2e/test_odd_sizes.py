"""Checkpoints whose sizes are multiples of nothing, as they are and quantised, on the float path against the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file
from tiny_models import TINY_DIR, Chunk, make_batch

from octavo import LLM, SamplingParams
from octavo.config import Quantization
from octavo.formats.safetensors import open_safetensors_dir
from octavo.models.decoder import build_program
from octavo.models.registry import hf_architecture, spec_from_hf
from octavo.program.ops import Program
from octavo.program.reference import ReferenceExecutor
from octavo.weights.checkpoint import checkpoint_from_safetensors
from octavo.weights.oracle import reference_weights
from octavo.weights.quantization import quantized_checkpoint

TOLERANCE = 2e-4
"""Of the logits' standard deviation: float32 sums in another order."""
PROMPT_LEN, NUM_GENERATED = 37, 20
SIZES = {
    "vocab_size": 1999,
    "hidden_size": 70,
    "intermediate_size": 77,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "max_position_embeddings": 128,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
}
GEMMA = {"query_pre_attn_scalar": 24, "sliding_window_pattern": 2, "rope_local_base_freq": 1e4, "head_dim": 24}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama with biases": {"architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True},
    "llama of one layer": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 33},
    "qwen3 with one value in between": {"architectures": ["Qwen3ForCausalLM"], "intermediate_size": 1},
    "mistral that sees itself": {"architectures": ["MistralForCausalLM"], "sliding_window": 1},
    **{
        f"gemma3 with a window of {window}": {
            **GEMMA, "architectures": ["Gemma3ForCausalLM"], "sliding_window": window, "tie_word_embeddings": True,
        }
        for window in (7, 16, 17, 1000)
    },
}  # fmt: skip


def make_checkpoint(directory: Path, config: dict[str, Any]) -> Program:
    """Write random weights for every tensor that the config asks for."""
    rng = np.random.default_rng(5)
    program = build_program(spec_from_hf(config, "config"), max_model_len=128, block_size=16, cache_dtype="float32")
    tensors = {}
    for weight in program.weights:
        for part in weight.parts:
            shape = (part.num_rows, *weight.shape[1:])
            values = rng.standard_normal(shape) * (0.3 if len(shape) == 1 else 1.5 / np.sqrt(shape[-1]))
            if part.name.endswith("norm.weight") and "Gemma3ForCausalLM" not in config["architectures"]:
                values += 1
            name = part.name if part.name.startswith("lm_head") else f"model.{part.name}"
            tensors[name] = values.astype(np.float32)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return program


def oracle_logits(
    directory: Path, config: dict[str, Any], program: Program, ids: list[int], quantization: Quantization | None
) -> npt.NDArray[np.float32]:
    offset = hf_architecture(config, "config").norm_offset
    checkpoint = checkpoint_from_safetensors(open_safetensors_dir(directory), str(directory), norm_offset=offset)
    if quantization is not None:
        checkpoint = quantized_checkpoint(checkpoint, quantization)
    num_groups = len(program.cache_groups)
    executor = ReferenceExecutor(program, reference_weights(program, checkpoint), [9] * num_groups)
    executor.run_body(make_batch(program, [Chunk(0, ids, [list(range(1, 9))] * num_groups)]))
    return executor.run_head(np.arange(len(ids), dtype=np.int32))


def as_rows(positions: list[Any], vocab_size: int) -> npt.NDArray[np.float64]:
    rows = np.full((len(positions), vocab_size), np.nan)
    for row, position in zip(rows, positions, strict=True):
        row[list(position)] = [entry.logprob for entry in position.values()]
    return rows


@pytest.mark.parametrize("quantization", [None, "q8", "q4"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_prompt_and_output_are_the_oracles(
    tmp_path: Path, name: str, quantization: Quantization | None
) -> None:
    config = {**SIZES, **CONFIGS[name]}
    program = make_checkpoint(tmp_path, config)
    vocab_size = config["vocab_size"]
    prompt = [(index * 389) % vocab_size for index in range(PROMPT_LEN)]
    options = {"activation_quantization": False, "kv_cache_dtype": "float32", "long_prefill_token_threshold": 5}
    options["quantization"] = quantization
    with LLM(tmp_path, tokenizer=TINY_DIR / "llama", max_logprobs=-1, logprobs_mode="raw_logits", **options) as llm:
        params = SamplingParams(
            temperature=0, max_tokens=NUM_GENERATED, logprobs=-1, prompt_logprobs=-1, ignore_eos=True
        )
        (output,) = llm.generate([prompt], params, use_tqdm=False)
    completion = output.outputs[0]
    expected = oracle_logits(tmp_path, config, program, [*prompt, *completion.token_ids[:-1]], quantization)
    actual = as_rows([*output.prompt_logprobs[1:], *completion.logprobs], vocab_size)
    assert np.abs(actual - expected).max() < TOLERANCE * expected.std()
