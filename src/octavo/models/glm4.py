"""GLM 4, the dense models: norms around each sub-layer, and half of each head rotated, in pairs of neighbours."""

from __future__ import annotations

import re
from dataclasses import replace

from octavo.formats.gguf import GgufFile
from octavo.models.base import DecoderSpec
from octavo.models.config_reader import ConfigReader
from octavo.models.fused import split_fused, split_fused_gguf
from octavo.models.gguf_config import Metadata
from octavo.models.gguf_config import decoder_spec as gguf_decoder_spec
from octavo.models.hf_config import FULL, decoder_spec, read_num_layers
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor
from octavo.weights.packing import half_split_row_order

_STABLE_NORMS = {
    "post_self_attn_layernorm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}
"""What a file of this family calls the norms of a sandwich."""
_NORM = re.compile(r"(layers\.\d+)\.(\w+_layernorm)\.weight")
_QUERY_OR_KEY = re.compile(r"layers\.\d+\.self_attn\.([qk])_proj\.(?:weight|bias)")


def hf_spec(config: ConfigReader) -> DecoderSpec:
    """GLM 4, dense: norms around each sub-layer, half of each head rotated, in pairs of neighbours."""
    config = config.over({"partial_rotary_factor": 0.5})
    spec = decoder_spec(config, [FULL] * read_num_layers(config))
    return replace(spec, block="sandwich", qkv_bias=config.flag("attention_bias", True))


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """GLM 4, dense."""
    return replace(gguf_decoder_spec(Metadata(file)), block="sandwich")


def adapt_hf(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors as the program wants them."""
    tensors = {_stable_name(name): tensor for name, tensor in checkpoint.tensors.items()}
    return _half_split(split_fused(Checkpoint(checkpoint.source, tensors), spec), spec)


def adapt_gguf(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors as the program wants them."""
    return _half_split(split_fused_gguf(checkpoint, spec), spec)


def _half_split(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors with the rows of q and k in the order of a half-split rotation."""
    tensors = {
        name: _reordered(name, tensor, spec, f"{checkpoint.source}: tensor {name}")
        for name, tensor in checkpoint.tensors.items()
    }
    return Checkpoint(checkpoint.source, tensors)


def _reordered(name: str, tensor: CheckpointTensor, spec: DecoderSpec, field: str) -> CheckpointTensor:
    match = _QUERY_OR_KEY.fullmatch(name)
    rope = spec.layers[0].rope
    if match is None or rope is None:
        return tensor
    num_heads = spec.num_heads if match[1] == "q" else spec.num_kv_heads
    num_rows = num_heads * spec.head_dim
    tensor.check_rows(num_rows, field)
    order = half_split_row_order(num_rows, num_heads, field, rotary_dim=rope.rotary_dim)
    return replace(tensor, row_order=order)


def _stable_name(name: str) -> str:
    match = _NORM.fullmatch(name)
    return f"{match[1]}.{_STABLE_NORMS.get(match[2], match[2])}.weight" if match else name
