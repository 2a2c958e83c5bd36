"""Tiny checkpoints of each architecture, on the float path, against logits made with other software."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import TINY_DIR, read_reference

from octavo import LLM, SamplingParams

NAMES = [
    *(
        "llama",
        "llama3_rope",
        "llama_yarn",
        "llama_linear",
        "llama_dynamic",
        "qwen3",
        "gemma3_text",
        "olmo2",
        "granite",
    ),
    *("smollm3", "gemma", "gemma2", "phi3", "phi4_longrope", "olmo3", "glm4", "mistral", "qwen2"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe"),
]
TOLERANCE = 1e-4
"""Of the logits' standard deviation: float32 sums in another order."""
FLOAT_PATH = {"activation_quantization": False, "kv_cache_dtype": "float32"}


def as_row(position: dict, vocab_size: int) -> np.ndarray:
    """Return the values of a position that lists the whole vocabulary, in id order."""
    row = np.full(vocab_size, np.nan)
    row[list(position)] = [entry.logprob for entry in position.values()]
    return row


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_references(name: str) -> None:
    reference = read_reference(name)
    logits = reference.logits
    tokenizer = TINY_DIR / "llama"  # whose first ids all have in common
    with LLM(TINY_DIR / name, tokenizer=tokenizer, max_logprobs=-1, logprobs_mode="raw_logits", **FLOAT_PATH) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, prompt_logprobs=-1)
        (output,) = llm.generate([reference.input_ids], params, use_tqdm=False)
    positions = [*output.prompt_logprobs[1:], output.outputs[0].logprobs[0]]
    actual = np.stack([as_row(position, logits.shape[1]) for position in positions])
    assert np.abs(actual - logits).max() < TOLERANCE * logits.std()
