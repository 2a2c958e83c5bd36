"""Families with a mixture of experts: the metadata of their GGUF files as a `DecoderSpec`.

How the chosen experts are weighted is not in the file: each architecture has its way.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.formats.gguf import GgufFile
from octavo.models.base import DecoderSpec, MoeSpec, SharedExpertSpec
from octavo.models.gguf_config import Metadata, decoder_spec, granite_spec
from octavo.models.hf_moe import too_many_experts
from octavo.program.moe_ops import Routing, Scoring


def llama_spec(file: GgufFile) -> DecoderSpec:
    """Llama, SmolLM2, Mistral; with experts Mixtral."""
    metadata = Metadata(file)
    spec = decoder_spec(metadata)
    if not metadata.size("expert_count", 0):
        return spec
    return _with_experts(metadata, spec, MoeSpec(_routing(metadata, renormalize=True), spec.ffn_size))


def olmoe_spec(file: GgufFile) -> DecoderSpec:
    """OLMoE."""
    metadata = Metadata(file)
    spec = replace(decoder_spec(metadata), qk_norm="full")
    return _with_experts(metadata, spec, MoeSpec(_routing(metadata), spec.ffn_size))


def granite_moe_spec(file: GgufFile) -> DecoderSpec:
    """Granite 3 MoE."""
    metadata = Metadata(file)
    spec = granite_spec(file)
    return _with_experts(metadata, spec, MoeSpec(_routing(metadata, scoring="topk_softmax"), spec.ffn_size))


def qwen2_moe_spec(file: GgufFile) -> DecoderSpec:
    """Qwen 1.5 and 2 MoE."""
    return with_shared_experts(file, decoder_spec(Metadata(file)), renormalize=False)


def qwen3_moe_spec(file: GgufFile) -> DecoderSpec:
    """Qwen 3 MoE."""
    metadata = Metadata(file)
    spec = replace(decoder_spec(metadata), qk_norm="head")
    routing = _routing(metadata, renormalize=True)
    return _with_experts(metadata, spec, MoeSpec(routing, _expert_size(metadata, spec, routing)))


def with_shared_experts(file: GgufFile, spec: DecoderSpec, *, renormalize: bool) -> DecoderSpec:
    """Add experts, and the one that all rows take."""
    metadata = Metadata(file)
    routing = _routing(metadata, renormalize=renormalize)
    shared_size = metadata.size("expert_shared_feed_forward_length", spec.ffn_size)
    moe = MoeSpec(routing, _expert_size(metadata, spec, routing), SharedExpertSpec(shared_size, is_gated=True))
    return _with_experts(metadata, spec, moe)


def _routing(metadata: Metadata, *, scoring: Scoring = "softmax", renormalize: bool = False) -> Routing:
    routing = Routing(metadata.size("expert_count"), metadata.size("expert_used_count"), scoring, renormalize)
    num_layers = metadata.size("block_count")
    too_many = too_many_experts(routing.num_experts, num_layers)
    if too_many is not None:
        metadata.fail("expert_count", f"is {routing.num_experts}: {too_many}")
    problem = routing.problem()
    if problem is not None:
        metadata.fail("expert_used_count", f"is {routing.top_k}: {problem}")
    return routing


def _expert_size(metadata: Metadata, spec: DecoderSpec, routing: Routing) -> int:
    """Return the width of an expert; old files give only that of all experts that a row takes."""
    return metadata.size("expert_feed_forward_length", max(spec.ffn_size // routing.top_k, 1))


def _with_experts(metadata: Metadata, spec: DecoderSpec, moe: MoeSpec) -> DecoderSpec:
    """Give experts to the layers that have a router."""
    tensors = metadata.file.tensors
    layers = (
        replace(layer, ffn="moe") if f"blk.{index}.ffn_gate_inp.weight" in tensors else layer
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, moe=moe, layers=tuple(layers))
