"""A float checkpoint quantised at load: how far its logits move, the same answers always, and what memory it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file
from tiny_models import TINY_DIR, read_reference

from octavo import LLM, SamplingParams

NAMES = ["llama", "llama3_rope", "llama_yarn", "qwen3", "gemma3_text"]
LOGIT_TOLERANCE = {"q8": 0.1, "q4": 0.6}
"""Root mean square over the logits' standard deviation. These weights are drawn to amplify every error: real models
move by a tenth of this."""

GREEDY = SamplingParams(temperature=0, max_tokens=16, logprobs=1, ignore_eos=True)


def all_logits(name: str, **options: Any) -> npt.NDArray[np.float64]:
    """Return the logits [48, V] of the reference's input."""
    ids = read_reference(name).input_ids
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, prompt_logprobs=-1)
    options |= {"tokenizer": TINY_DIR / "llama", "max_logprobs": -1, "logprobs_mode": "raw_logits"}
    with LLM(TINY_DIR / name, **options) as llm:
        (output,) = llm.generate([ids], params, use_tqdm=False)
    positions = [*output.prompt_logprobs[1:], output.outputs[0].logprobs[0]]
    return np.array([[position[token].logprob for token in range(len(position))] for position in positions])


@pytest.mark.parametrize("quantization", LOGIT_TOLERANCE)
@pytest.mark.parametrize("name", NAMES)
def test_logits_stay_near_those_of_the_float_model(name: str, quantization: str) -> None:
    expected = read_reference(name).logits
    error = all_logits(name, quantization=quantization) - expected
    assert np.sqrt(np.square(error).mean()) < LOGIT_TOLERANCE[quantization] * expected.std()


def answers(llm: LLM, prompts: list[list[int]]) -> list[tuple[Any, ...]]:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    return [(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outputs]


@pytest.mark.parametrize("quantization", LOGIT_TOLERANCE)
def test_answers_do_not_depend_on_company_threads_or_the_cache(own_cache: Path, quantization: str) -> None:
    prompts = [[(index * 389 + prompt) % 2048 for index in range(7 + 9 * prompt)] for prompt in range(4)]
    path = TINY_DIR / "llama"
    with LLM(path, quantization=quantization, num_threads=1, max_num_seqs=1) as llm:
        alone = answers(llm, prompts)
    for _ in range(2):  # the second takes its weights from the cache
        with LLM(path, quantization=quantization, num_threads=2, cache_quantized_weights=True) as llm:
            assert answers(llm, prompts) == alone
        assert len(list((own_cache / "weights").iterdir())) == 1


def test_the_fingerprint_tells_how_weights_were_quantised() -> None:
    fingerprints = set()
    for quantization in (None, "q8", "q4"):
        with LLM(TINY_DIR / "llama", quantization=quantization) as llm:
            fingerprints.add(llm.llm_engine.numeric_fingerprint)
    assert len(fingerprints) == 3


LOAD_WITHIN_LIMIT = """
import re, resource, sys
from octavo import EngineConfig
from octavo.frontend import resolve
from octavo.models.decoder import build_program
from octavo.native import kernels
from octavo.weights.quantizer import WeightQuantizer
from octavo.weights.store import load_weights

config = EngineConfig(sys.argv[1], quantization="q4", tokenizer=sys.argv[2])
model = resolve.resolve(config).model
program = build_program(model.spec, max_model_len=64, block_size=16, cache_dtype="float16")
native = kernels().PackedMatrix
mapped = 1024 * int(re.search(r"VmSize:\\s*(\\d+)", open("/proc/self/status").read())[1])
limit = mapped + model.checkpoint.packed_bytes + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
quantize = WeightQuantizer(native, num_threads=1)
store = load_weights(program, model.checkpoint, pack=native.pack, quantize=quantize)
print(sum(store.bytes_by_name().values()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
def test_quantising_takes_little_memory_beside_the_result(tmp_path: Path) -> None:
    vocab_size, hidden, ffn = 50_000, 1024, 4096
    config = {**json.loads((TINY_DIR / "llama" / "config.json").read_text()), "vocab_size": vocab_size}
    config |= {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": 1, "tie_word_embeddings": True}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64}
    shapes = {"embed_tokens": (vocab_size, hidden), "norm": (hidden,)}
    shapes |= {f"layers.0.self_attn.{part}_proj": (hidden, hidden) for part in "qkvo"}
    shapes |= {f"layers.0.mlp.{part}_proj": (ffn, hidden) for part in ("gate", "up")}
    shapes |= {"layers.0.mlp.down_proj": (hidden, ffn)}
    shapes |= {f"layers.0.{norm}_layernorm": (hidden,) for norm in ("input", "post_attention")}
    pattern = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float16)
    save_file(
        {f"model.{name}.weight": np.resize(pattern, shape) for name, shape in shapes.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    margin = (64 + 20) << 20  # address space that small matrices share, and less than half of the embedding as float32
    arguments = [str(tmp_path), str(TINY_DIR / "llama"), str(margin)]
    done = subprocess.run([sys.executable, "-c", LOAD_WITHIN_LIMIT, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 80 << 20
