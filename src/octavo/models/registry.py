"""Which architectures Octavo runs: the name in the file, who reads its config, and the checkpoint's habits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile
from octavo.models import (
    gemma,
    gguf_config,
    gguf_moe,
    glm4,
    glm4_moe,
    hf_config,
    hf_moe,
    phi3,
    qwen3_5,
    qwen3_next,
)
from octavo.models.base import DecoderSpec
from octavo.models.config_reader import ConfigReader
from octavo.models.experts import split_experts
from octavo.models.fused import split_fused
from octavo.weights.checkpoint import Checkpoint

Adapt: TypeAlias = Callable[[Checkpoint, DecoderSpec], Checkpoint]


def keep(checkpoint: Checkpoint, _spec: DecoderSpec) -> Checkpoint:
    """Most families store their tensors as the program wants them."""
    return checkpoint


@dataclass(frozen=True, slots=True)
class HfArchitecture:
    """An entry of `architectures` in a config.json."""

    read_spec: Callable[[ConfigReader], DecoderSpec]
    norm_offset: float = 0.0
    """What a stored norm weight w stands for is w + this."""
    adapt: Adapt = keep
    """Brings the renamed tensors into the form that the program wants."""


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """A value of `general.architecture`."""

    read_spec: Callable[[GgufFile], DecoderSpec]
    permuted_qk: bool = False
    """Whether rows of q and k are stored for the interleaved rotation."""
    adapt: Adapt = keep
    """Brings the renamed tensors into the form that the program wants."""


HF_ARCHITECTURES: dict[str, HfArchitecture] = {
    "Gemma2ForCausalLM": HfArchitecture(gemma.gemma2_spec, norm_offset=1.0),
    "Gemma3ForCausalLM": HfArchitecture(gemma.gemma3_spec, norm_offset=1.0),
    "Gemma3ForConditionalGeneration": HfArchitecture(gemma.gemma3_spec, norm_offset=1.0),
    "GemmaForCausalLM": HfArchitecture(gemma.gemma_spec, norm_offset=1.0),
    "Glm4ForCausalLM": HfArchitecture(glm4.hf_spec, adapt=glm4.adapt_hf),
    "Glm4MoeForCausalLM": HfArchitecture(glm4_moe.hf_spec, adapt=glm4_moe.adapt_hf),
    "GraniteForCausalLM": HfArchitecture(hf_config.granite_spec),
    "GraniteMoeForCausalLM": HfArchitecture(hf_moe.granite_moe_spec, adapt=split_experts),
    "LlamaForCausalLM": HfArchitecture(hf_config.llama_spec),
    "MistralForCausalLM": HfArchitecture(hf_config.mistral_spec),
    "MixtralForCausalLM": HfArchitecture(hf_moe.mixtral_spec, adapt=split_experts),
    "Olmo2ForCausalLM": HfArchitecture(hf_config.olmo2_spec),
    "Olmo3ForCausalLM": HfArchitecture(hf_config.olmo3_spec),
    "OlmoeForCausalLM": HfArchitecture(hf_moe.olmoe_spec, adapt=split_experts),
    "Phi3ForCausalLM": HfArchitecture(phi3.hf_spec, adapt=split_fused),
    "Qwen2ForCausalLM": HfArchitecture(hf_config.qwen2_spec),
    "Qwen2MoeForCausalLM": HfArchitecture(hf_moe.qwen2_moe_spec, adapt=split_experts),
    "Qwen3ForCausalLM": HfArchitecture(hf_config.qwen3_spec),
    "Qwen3MoeForCausalLM": HfArchitecture(hf_moe.qwen3_moe_spec, adapt=split_experts),
    "Qwen3NextForCausalLM": HfArchitecture(qwen3_next.next_spec, norm_offset=1.0, adapt=qwen3_next.adapt_next),
    "Qwen3_5ForCausalLM": HfArchitecture(qwen3_5.hf_spec, norm_offset=1.0, adapt=qwen3_5.adapt_hf),
    "Qwen3_5ForConditionalGeneration": HfArchitecture(qwen3_5.hf_spec, norm_offset=1.0, adapt=qwen3_5.adapt_hf),
    "Qwen3_5MoeForCausalLM": HfArchitecture(qwen3_next.moe_spec, norm_offset=1.0, adapt=qwen3_next.adapt_moe),
    "Qwen3_5MoeForConditionalGeneration": HfArchitecture(
        qwen3_next.moe_spec, norm_offset=1.0, adapt=qwen3_next.adapt_moe
    ),
    "SmolLM3ForCausalLM": HfArchitecture(hf_config.smollm3_spec),
}

GGUF_ARCHITECTURES: dict[str, GgufArchitecture] = {
    "gemma": GgufArchitecture(gemma.gemma_gguf_spec),
    "gemma2": GgufArchitecture(gemma.gemma2_gguf_spec),
    "gemma3": GgufArchitecture(gemma.gemma3_gguf_spec),
    "glm4": GgufArchitecture(glm4.gguf_spec, adapt=glm4.adapt_gguf),
    "granite": GgufArchitecture(gguf_config.granite_spec, permuted_qk=True),
    "granitemoe": GgufArchitecture(gguf_moe.granite_moe_spec, permuted_qk=True, adapt=split_experts),
    "llama": GgufArchitecture(gguf_moe.llama_spec, permuted_qk=True, adapt=split_experts),
    "olmo2": GgufArchitecture(gguf_config.olmo2_spec),
    "olmoe": GgufArchitecture(gguf_moe.olmoe_spec, adapt=split_experts),
    "phi3": GgufArchitecture(phi3.gguf_spec, adapt=phi3.adapt_gguf),
    "qwen2": GgufArchitecture(gguf_config.qwen2_spec),
    "qwen2moe": GgufArchitecture(gguf_moe.qwen2_moe_spec, adapt=split_experts),
    "qwen3": GgufArchitecture(gguf_config.qwen3_spec),
    "qwen3moe": GgufArchitecture(gguf_moe.qwen3_moe_spec, adapt=split_experts),
    "qwen35": GgufArchitecture(qwen3_5.gguf_spec, adapt=qwen3_5.adapt_gguf),
    "qwen35moe": GgufArchitecture(qwen3_next.moe_gguf_spec, adapt=qwen3_next.adapt_moe_gguf),
    "smollm3": GgufArchitecture(gguf_config.smollm3_spec, permuted_qk=True),
}


def hf_architecture(config: Mapping[str, object], source: str) -> HfArchitecture:
    """Return the architecture of a config.json; `source` names it in errors."""
    reader = ConfigReader(config, source)
    from octavo.weights.prequantized import read_scheme  # not for GGUF files

    read_scheme(config, source)
    names = reader.strings("architectures")
    for name in names:
        if name in HF_ARCHITECTURES:
            return HF_ARCHITECTURES[name]
    supported = ", ".join(HF_ARCHITECTURES)
    raise ModelLoadError(
        f"{source}: architecture {', '.join(names) or '(none)'} is not supported; supported: {supported}"
    )


def spec_from_hf(config: Mapping[str, object], source: str) -> DecoderSpec:
    """Read the spec of a config.json (with the user's overrides already in it)."""
    architecture = hf_architecture(config, source)
    text = ConfigReader(config, source).nested("text_config")
    if text is None:
        return architecture.read_spec(ConfigReader(config, source))
    return architecture.read_spec(text.over({"tie_word_embeddings": config.get("tie_word_embeddings")}))


def gguf_architecture(file: GgufFile) -> GgufArchitecture:
    """Return the architecture of a GGUF file."""
    name = file.require("general.architecture", str)
    if name not in GGUF_ARCHITECTURES:
        supported = ", ".join(GGUF_ARCHITECTURES)
        raise ModelLoadError(f"{file.path}: architecture {name!r} is not supported; supported in GGUF: {supported}")
    return GGUF_ARCHITECTURES[name]


def spec_from_gguf(file: GgufFile) -> DecoderSpec:
    """Read the spec of a GGUF file."""
    return gguf_architecture(file).read_spec(file)
