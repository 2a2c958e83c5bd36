"""The tiny checkpoints under data/tiny: random weights, with logits and greedy ids computed by transformers.

`tools/make_tiny_checkpoints.py` made them. They are small enough for the oracle, and their weights are drawn so that
a dropped bias, a wrong pairing in the rotation or a window off by one changes the logits by standard deviations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.formats.gguf import GgufFile
from octavo.formats.safetensors import SafetensorsTensor, open_safetensors, open_safetensors_dir
from octavo.models.base import DecoderSpec
from octavo.models.registry import gguf_architecture, hf_architecture, spec_from_gguf, spec_from_hf
from octavo.program.forward_batch import ForwardBatch, SeatTables
from octavo.program.ops import Program
from octavo.weights.checkpoint import Checkpoint, checkpoint_from_gguf, checkpoint_from_safetensors

TINY_DIR = Path(__file__).parent / "data" / "tiny"

TINY_MODELS: dict[str, tuple[str, ...]] = {
    "Gemma2ForCausalLM": ("gemma2",),
    "Gemma3ForCausalLM": ("gemma3_text",),
    "Gemma3ForConditionalGeneration": ("gemma3_text",),
    "GemmaForCausalLM": ("gemma",),
    "Glm4ForCausalLM": ("glm4",),
    "Glm4MoeForCausalLM": ("glm4_moe",),
    "GraniteForCausalLM": ("granite",),
    "GraniteMoeForCausalLM": ("granitemoe",),
    "LlamaForCausalLM": ("llama", "llama3_rope", "llama_yarn", "llama_linear", "llama_dynamic"),
    "MistralForCausalLM": ("mistral",),
    "MixtralForCausalLM": ("mixtral",),
    "Olmo2ForCausalLM": ("olmo2",),
    "Olmo3ForCausalLM": ("olmo3",),
    "OlmoeForCausalLM": ("olmoe",),
    "Phi3ForCausalLM": ("phi3", "phi4_longrope"),
    "Qwen2ForCausalLM": ("qwen2",),
    "Qwen2MoeForCausalLM": ("qwen2_moe",),
    "Qwen3ForCausalLM": ("qwen3",),
    "Qwen3MoeForCausalLM": ("qwen3_moe",),
    "Qwen3NextForCausalLM": ("qwen3_next", "qwen3_next_odd"),
    "Qwen3_5ForCausalLM": ("qwen3_5_text", "qwen3_5_08b_ratio", "qwen3_5_odd"),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5_vlm",),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe", "qwen3_5_moe_odd"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe",),
    "SmolLM3ForCausalLM": ("smollm3",),
}
"""Per architecture the checkpoints that test it."""


@dataclass(frozen=True)
class Model:
    """A model as it lies on disk."""

    spec: DecoderSpec
    checkpoint: Checkpoint


@dataclass(frozen=True)
class TinyReference:
    """What transformers computed in float32."""

    input_ids: list[int]
    logits: npt.NDArray[np.float32]
    """[48, V] for `input_ids`."""
    prompt_ids: list[int]
    greedy_ids: list[int]
    """24 greedy tokens after `prompt_ids`."""
    double_logits: npt.NDArray[np.float64] | None
    """`logits` in double precision, of a checkpoint that float32 is too coarse for."""


def read_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((TINY_DIR / name / "config.json").read_text())
    return config


def open_tiny(name: str, architecture: str | None = None) -> Model:
    """Open a checkpoint; one of a text model as a ForConditionalGeneration in the layout of a multimodal one."""
    config: Mapping[str, object] = read_config(name)
    tensors = open_safetensors_dir(TINY_DIR / name)
    if architecture is not None and architecture.endswith("ForConditionalGeneration") and "text_config" not in config:
        text = {key: value for key, value in config.items() if key not in ("architectures", "tie_word_embeddings")}
        tied = config["tie_word_embeddings"]
        config = {"architectures": [architecture], "text_config": text, "tie_word_embeddings": tied}
        tensors = {f"language_model.{key}": rename(tensor, f"language_model.{key}") for key, tensor in tensors.items()}
        vision = SafetensorsTensor("vision_tower.head.weight", "F32", (1,), np.zeros(4, dtype=np.uint8))
        tensors[vision.name] = vision
    found = hf_architecture(config, name)
    spec = spec_from_hf(config, name)
    return Model(spec, found.adapt(checkpoint_from_safetensors(tensors, name, norm_offset=found.norm_offset), spec))


def open_gguf_model(file: GgufFile) -> Model:
    spec = spec_from_gguf(file)
    found = gguf_architecture(file)
    heads = (spec.num_heads, spec.num_kv_heads) if found.permuted_qk else None
    checkpoint = checkpoint_from_gguf(file, sandwich=spec.block == "sandwich", permuted_heads=heads)
    return Model(spec, found.adapt(checkpoint, spec))


def as_floats(tensor: SafetensorsTensor) -> npt.NDArray[np.float32]:
    """Return the values of a tensor in float32 or bfloat16."""
    if tensor.dtype == "F32":
        return tensor.data.view(np.float32).reshape(tensor.shape)
    assert tensor.dtype == "BF16"
    return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)


def rename(tensor: SafetensorsTensor, name: str) -> SafetensorsTensor:
    return SafetensorsTensor(name, tensor.dtype, tensor.shape, tensor.data)


def read_reference(name: str) -> TinyReference:
    tensors = open_safetensors(TINY_DIR / name / "ref.safetensors")
    double = tensors.get("double_logits")
    recorded = json.loads((TINY_DIR / name / "ref.json").read_text())
    return TinyReference(
        input_ids=tensors["input_ids"].data.view(np.int64).tolist(),
        logits=tensors["logits"].data.view(np.float32).reshape(tensors["logits"].shape),
        prompt_ids=recorded["prompt_ids"],
        greedy_ids=recorded["greedy_ids"],
        double_logits=None if double is None else double.data.view(np.float64).reshape(double.shape),
    )


def read_hidden_states(name: str) -> npt.NDArray[np.float32]:
    """Return what transformers computed of the tokens of a reference: [48, E], after the final norm."""
    tensor = open_safetensors(TINY_DIR / name / "hidden.safetensors")["hidden_states"]
    return tensor.data.view(np.float32).reshape(tensor.shape)


@dataclass(frozen=True)
class Chunk:
    """Some tokens of one request: its tokens from `start` on, with a block table for each cache group.

    The table of a state group is one slot.
    """

    start: int
    token_ids: Sequence[int]
    block_ids: Sequence[Sequence[int]]


def make_batch(program: Program, chunks: Sequence[Chunk]) -> ForwardBatch:
    """Lay out one step."""
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    lengths = np.array([len(chunk.token_ids) for chunk in chunks], np.int32)
    token_ids = np.zeros((len(chunks), (starts + lengths).max()), np.int32)
    for row, chunk in enumerate(chunks):
        token_ids[row, chunk.start : chunk.start + len(chunk.token_ids)] = chunk.token_ids
    tables = []
    for group in range(len(program.cache_groups)):
        table = np.full((len(chunks), max(len(c.block_ids[group]) for c in chunks)), -1, dtype=np.int32)
        for row, chunk in enumerate(chunks):
            table[row, : len(chunk.block_ids[group])] = chunk.block_ids[group]
        tables.append(table)
    return ForwardBatch(SeatTables(token_ids, tuple(tables)), np.arange(len(chunks), dtype=np.int32), starts, lengths)
