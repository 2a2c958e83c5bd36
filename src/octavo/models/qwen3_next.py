"""Qwen3-Next and Qwen 3.5 MoE: the layers of Qwen 3.5, with experts. Config and tensor habits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.formats.gguf import GgufFile
from octavo.models import qwen3_5
from octavo.models.base import DecoderSpec, DeltaNetSpec
from octavo.models.config_reader import ConfigReader
from octavo.models.experts import split_experts
from octavo.models.gguf_moe import with_shared_experts
from octavo.models.hf_moe import with_qwen_experts
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor
from octavo.weights.packing import RowOrder


def moe_spec(config: ConfigReader) -> DecoderSpec:
    """Qwen 3.5 MoE: experts on every layer, whose weights add up to 1."""
    return with_qwen_experts(qwen3_5.hf_spec(_without_dense(config)), config, renormalize=True)


def next_spec(config: ConfigReader) -> DecoderSpec:
    """Qwen3-Next: its files have the recurrent layers' input projections in two matrices."""
    spec = qwen3_5.hf_spec(_without_dense(config))
    assert spec.delta_net is not None, "of a hybrid model"
    spec = replace(spec, delta_net=replace(spec.delta_net, fused_inputs=True))
    return with_qwen_experts(spec, config, renormalize=config.flag("norm_topk_prob", True))


def moe_gguf_spec(file: GgufFile) -> DecoderSpec:
    """Qwen 3.5 MoE in a GGUF file."""
    return with_shared_experts(file, qwen3_5.gguf_spec(file), renormalize=True)


def adapt_moe(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors of Qwen 3.5 MoE as the program wants them."""
    return split_experts(qwen3_5.adapt_hf(checkpoint, spec), spec)


def adapt_moe_gguf(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors of Qwen 3.5 MoE from a GGUF file as the program wants them."""
    return split_experts(qwen3_5.adapt_gguf(checkpoint, spec), spec)


def adapt_next(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors of Qwen3-Next as the program wants them."""
    assert spec.delta_net is not None, "of a hybrid model"
    row_counts = {"in_proj_qkvz": _qkvz_sizes(spec.delta_net), "in_proj_ba": _ba_sizes(spec.delta_net)}
    tensors = {}
    for name, tensor in adapt_moe(checkpoint, spec).tensors.items():
        counts = row_counts.get(name.split(".")[-2]) if ".linear_attn." in name else None
        if counts is None:
            tensors[name] = tensor
        else:
            order = _ungrouped(tensor, counts, spec.delta_net.num_key_heads, f"{checkpoint.source}: tensor {name}")
            tensors[name] = replace(tensor, row_order=order)
    return Checkpoint(checkpoint.source, tensors)


def _without_dense(config: ConfigReader) -> ConfigReader:
    """Return a config that states the width of dense layers: files of models without any leave it out."""
    return config.over({"intermediate_size": config.size("moe_intermediate_size")})


def _qkvz_sizes(sizes: DeltaNetSpec) -> list[int]:
    """Return the rows of q, k, v and z that belong to a key head."""
    values = sizes.num_value_heads // sizes.num_key_heads * sizes.value_dim
    return [sizes.key_dim, sizes.key_dim, values, values]


def _ba_sizes(sizes: DeltaNetSpec) -> list[int]:
    """Return the rows of b and a that belong to a key head."""
    return [sizes.num_value_heads // sizes.num_key_heads] * 2


def _ungrouped(tensor: CheckpointTensor, row_counts: list[int], num_key_heads: int, field: str) -> RowOrder:
    """Return where the file keeps what the program wants part by part: it has all parts of each key head together."""
    num_rows = num_key_heads * sum(row_counts)
    tensor.check_rows(num_rows, field)
    heads = np.arange(num_rows, dtype=np.int32).reshape(num_key_heads, -1)
    parts = np.split(heads, np.cumsum(row_counts)[:-1], axis=1)
    return np.concatenate([part.reshape(-1) for part in parts])
