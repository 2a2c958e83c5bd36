"""Families with a mixture of experts: their config.json as a `DecoderSpec`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from octavo.models.base import DecoderSpec, MoeSpec, SharedExpertSpec
from octavo.models.config_reader import ConfigReader
from octavo.models.hf_config import granite_spec, llama_spec, mistral_spec, qwen2_spec, qwen3_spec
from octavo.program.moe_ops import Routing, Scoring

_MAX_LAYER_EXPERTS = 1 << 16
"""Of one layer: csrc/moe_checks.h."""
_MAX_EXPERTS = 1 << 17
"""Of all layers: several times what any model has, and few enough for the lists that a program makes of them."""


def mixtral_spec(config: ConfigReader) -> DecoderSpec:
    """Mixtral: Mistral with experts on every layer; a row's weights add up to 1."""
    spec = mistral_spec(config)
    return with_experts(spec, MoeSpec(read_routing(config, renormalize=True), spec.ffn_size))


def olmoe_spec(config: ConfigReader) -> DecoderSpec:
    """OLMoE: Llama with norms over all of q and all of k."""
    if config.has("clip_qkv"):
        config.fail("clip_qkv", "is set: clipping q, k and v is not supported")
    spec = replace(llama_spec(config), qk_norm="full")
    routing = read_routing(config, renormalize=config.flag("norm_topk_prob", False))
    return with_experts(spec, MoeSpec(routing, spec.ffn_size))


def granite_moe_spec(config: ConfigReader) -> DecoderSpec:
    """Granite 3 MoE: Granite whose router takes the softmax of the chosen experts only."""
    spec = granite_spec(config)
    return with_experts(spec, MoeSpec(read_routing(config, scoring="topk_softmax"), spec.ffn_size))


def qwen2_moe_spec(config: ConfigReader) -> DecoderSpec:
    """Qwen 1.5 and 2 MoE: beside the chosen experts one for all rows, with a gate of its own."""
    _refuse_window(config)
    return with_qwen_experts(qwen2_spec(config), config, renormalize=config.flag("norm_topk_prob", False))


def qwen3_moe_spec(config: ConfigReader) -> DecoderSpec:
    """Qwen 3 MoE: Qwen 3 with experts on the layers that the config names, all but `mlp_only_layers`."""
    _refuse_window(config)
    return with_qwen_experts(qwen3_spec(config), config, renormalize=config.flag("norm_topk_prob", False))


def with_qwen_experts(spec: DecoderSpec, config: ConfigReader, *, renormalize: bool) -> DecoderSpec:
    """Add the experts of the Qwen families, which some layers may be without."""
    shared = None
    if config.count("shared_expert_intermediate_size", 0):
        shared = SharedExpertSpec(config.size("shared_expert_intermediate_size"), is_gated=True)
    routing = read_routing(config, renormalize=renormalize)
    listed = config.counts("mlp_only_layers") if config.has("mlp_only_layers") else []
    step = config.size("decoder_sparse_step", 1)
    dense = {*listed, *(index for index in range(len(spec.layers)) if (index + 1) % step)}
    return with_experts(spec, MoeSpec(routing, config.size("moe_intermediate_size"), shared), dense=dense)


def read_routing(config: ConfigReader, *, scoring: Scoring = "softmax", renormalize: bool = False) -> Routing:
    """Read how experts are chosen. The number of them has three names."""
    key = next((name for name in ("num_experts", "n_routed_experts") if config.has(name)), "num_local_experts")
    routing = Routing(
        config.size(key),
        config.size("num_experts_per_tok"),
        scoring,
        renormalize,
        scale=config.number("routed_scaling_factor", 1.0),
        num_groups=config.size("n_group", 1),
        top_groups=config.size("topk_group", 1),
    )
    num_layers = config.size("num_hidden_layers")
    too_many = too_many_experts(routing.num_experts, num_layers)
    if too_many is not None:
        config.fail(key, f"is {routing.num_experts}: {too_many}")
    problem = routing.problem()
    if problem is not None:
        config.fail("num_experts_per_tok" if routing.num_groups == 1 else "n_group", f"cannot be: {problem}")
    return routing


def too_many_experts(num_experts: int, num_layers: int) -> str | None:
    """Return which limit so many experts on each layer are beyond, or None."""
    if num_experts > _MAX_LAYER_EXPERTS:
        return f"at most {_MAX_LAYER_EXPERTS} experts on a layer are supported"
    if num_experts * num_layers > _MAX_EXPERTS:
        return f"{num_layers} layers of them are more than {_MAX_EXPERTS} experts"
    return None


def with_experts(spec: DecoderSpec, moe: MoeSpec, *, dense: Collection[int] = ()) -> DecoderSpec:
    """Return the model with experts on all layers but those in `dense`."""
    layers = [layer if index in dense else replace(layer, ffn="moe") for index, layer in enumerate(spec.layers)]
    return replace(spec, moe=moe, layers=tuple(layers))


def _refuse_window(config: ConfigReader) -> None:
    """No published model has one, and the versions of transformers differ on which layers it would be."""
    if config.flag("use_sliding_window", False):
        config.fail("use_sliding_window", "is true: not supported in Qwen models with experts")
