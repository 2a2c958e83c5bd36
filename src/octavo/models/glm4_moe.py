"""GLM 4.5 and 4.6: experts in groups that are scored by sigmoids, and a draft model's layer behind the last."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

from octavo.models.base import DecoderSpec, MoeSpec, SharedExpertSpec
from octavo.models.config_reader import ConfigReader
from octavo.models.experts import split_experts
from octavo.models.hf_config import FULL, decoder_spec, read_num_layers
from octavo.models.hf_moe import read_routing, with_experts
from octavo.weights.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"layers\.(\d{1,9})\.")


def hf_spec(config: ConfigReader) -> DecoderSpec:
    """GLM 4.5 and 4.6: experts in groups, whose choice a bias counts for, and one for all rows, without a gate."""
    config = config.over({"partial_rotary_factor": 0.5})
    spec = decoder_spec(config, [FULL] * read_num_layers(config))
    has_norm = config.flag("use_qk_norm", False)
    spec = replace(spec, qkv_bias=config.flag("attention_bias", False), qk_norm="head" if has_norm else None)
    ffn_size = config.size("moe_intermediate_size")
    shared = SharedExpertSpec(ffn_size * config.size("n_shared_experts", 1), is_gated=False)
    routing = read_routing(config, scoring="sigmoid", renormalize=config.flag("norm_topk_prob", True))
    dense = range(config.count("first_k_dense_replace", 0))
    return with_experts(spec, MoeSpec(routing, ffn_size, shared, choice_bias=True), dense=dense)


def adapt_hf(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors as the program wants them, without those of the draft model's layer."""
    first = len(spec.layers)
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if _layer(name) < first}
    if len(tensors) < len(checkpoint.tensors):
        logger.warning("%s: the draft model in layers from %d on is not used", checkpoint.source, first)
    return split_experts(Checkpoint(checkpoint.source, tensors), spec)


def _layer(name: str) -> int:
    """Return the number of the layer that a tensor belongs to, -1 for none."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1
