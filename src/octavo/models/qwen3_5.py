"""Qwen 3.5: three of four layers are Gated DeltaNet, one is attention with an output gate. Config and tensor habits.

Its class defaults are those of one size, so what sizes a matrix must be in the file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_types import GgufType
from octavo.models.base import DecoderSpec, DeltaNetSpec, LayerSpec
from octavo.models.config_reader import ConfigReader
from octavo.models.gguf_config import Metadata
from octavo.models.gguf_config import decoder_spec as gguf_decoder_spec
from octavo.models.hf_config import FULL, LINEAR, read_layer_types, read_num_layers
from octavo.models.hf_config import decoder_spec as hf_decoder_spec
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor
from octavo.weights.packing import RowOrder

logger = logging.getLogger(__name__)

_DEFAULTS: Mapping[str, object] = {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32_768,
}
_MAX_CONV_WIDTH = 16
_MAX_HEAD_DIM = 512
"""Of a recurrent head: csrc/cpu/state_cache.h."""


def hf_spec(config: ConfigReader) -> DecoderSpec:
    """Qwen 3.5: Gated DeltaNet on three of four layers, attention with an output gate on the fourth; text only."""
    config = config.over(_DEFAULTS)
    interval = config.size("full_attention_interval")
    by_interval = [FULL if (i + 1) % interval == 0 else LINEAR for i in range(read_num_layers(config))]
    spec = hf_decoder_spec(config, read_layer_types(config, by_interval, (LINEAR, FULL)))
    _check_mixers(spec.layers, config.source)
    bias = config.flag("attention_bias", False)
    delta_net = DeltaNetSpec(
        num_key_heads=config.size("linear_num_key_heads"),
        num_value_heads=config.size("linear_num_value_heads"),
        key_dim=config.size("linear_key_head_dim"),
        value_dim=config.size("linear_value_head_dim"),
        conv_width=config.size("linear_conv_kernel_dim"),
    )
    _check_sizes(delta_net, config.source)
    return replace(
        spec,
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
        attention_gate=config.flag("attn_output_gate", True),
        delta_net=delta_net,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Qwen 3.5. The blocks of its draft model are not part of the model."""
    metadata = Metadata(file)
    spec = gguf_decoder_spec(metadata)
    num_layers = len(spec.layers) - metadata.size("nextn_predict_layers", 0)
    if num_layers < 1:
        metadata.fail("nextn_predict_layers", f"leaves none of {len(spec.layers)} blocks to the model")
    attention = spec.layers[0]
    recurrent = replace(attention, mixer="delta_net")
    delta_net = _gguf_delta_net(metadata)
    _check_sizes(delta_net, str(file.path))
    layers = tuple(recurrent if flag else attention for flag in _gguf_recurrent_layers(metadata, num_layers))
    _check_mixers(layers, str(file.path))
    return replace(
        spec,
        layers=layers,
        qk_norm="head",
        attention_gate=True,
        delta_net=delta_net,
    )


def _gguf_delta_net(metadata: Metadata) -> DeltaNetSpec:
    num_value_heads = metadata.size("ssm.time_step_rank")
    value_dim, rest = divmod(metadata.size("ssm.inner_size"), num_value_heads)
    if rest or not value_dim:
        metadata.fail("ssm.inner_size", f"is not a multiple of the {num_value_heads} heads of ssm.time_step_rank")
    return DeltaNetSpec(
        num_key_heads=metadata.size("ssm.group_count"),
        num_value_heads=num_value_heads,
        key_dim=metadata.size("ssm.state_size"),
        value_dim=value_dim,
        conv_width=metadata.size("ssm.conv_kernel"),
        tiled_heads=True,
    )


def _gguf_recurrent_layers(metadata: Metadata, num_layers: int) -> list[bool]:
    """Return which layers are recurrent: the file's list, or all but every fourth."""
    key = "attention.recurrent_layers"
    flags = metadata.file.optional(f"{metadata.prefix}.{key}", np.ndarray)
    if flags is None:
        interval = metadata.size("full_attention_interval", 4)
        return [(i + 1) % interval != 0 for i in range(num_layers)]
    if flags.dtype != np.bool_ or len(flags) < num_layers:
        metadata.fail(key, f"must be a list of {num_layers} booleans")
    return [bool(flag) for flag in flags[:num_layers]]


def _check_mixers(layers: Sequence[LayerSpec], source: str) -> None:
    """Refuse a model that would have no KV cache, by which requests are scheduled."""
    if all(layer.mixer == "delta_net" for layer in layers):
        raise ModelLoadError(f"{source}: none of the {len(layers)} layers has full attention, at least one is needed")


def _check_sizes(sizes: DeltaNetSpec, source: str) -> None:
    if sizes.num_value_heads % sizes.num_key_heads:
        raise ModelLoadError(
            f"{source}: the number of linear value heads, {sizes.num_value_heads}, is not a multiple of"
            f" {sizes.num_key_heads} key heads"
        )
    if max(sizes.key_dim, sizes.value_dim) > _MAX_HEAD_DIM:
        raise ModelLoadError(
            f"{source}: linear heads have {sizes.key_dim} key and {sizes.value_dim} value dims, at most {_MAX_HEAD_DIM}"
            " are supported"
        )
    if not 2 <= sizes.conv_width <= _MAX_CONV_WIDTH:
        raise ModelLoadError(
            f"{source}: the linear convolution is {sizes.conv_width} wide, supported: 2 to {_MAX_CONV_WIDTH}"
        )


def adapt_hf(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors as the program wants them."""
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        if name.endswith("linear_attn.A_log"):
            tensors[name.removesuffix("A_log") + "decay"] = _decay(tensor)
        elif name.endswith("linear_attn.norm.weight"):
            tensors[name] = replace(tensor, offset=0.0)
        else:
            tensors[name] = tensor
    return _adapt(Checkpoint(checkpoint.source, tensors), spec)


def adapt_gguf(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the tensors as the program wants them, without those of the draft model's blocks."""
    first = len(spec.layers)
    tensors = {
        name.replace("self_attn.qkv_proj", "linear_attn.in_proj_qkv"): tensor
        for name, tensor in checkpoint.tensors.items()
        if _block(name) < first
    }
    if len(tensors) < len(checkpoint.tensors):
        logger.warning("%s: the draft model in blocks from %d on is not used", checkpoint.source, first)
    return _adapt(Checkpoint(checkpoint.source, tensors), spec)


def _block(name: str) -> int:
    """Return the number of the block that a tensor belongs to, -1 for none; names may be unknown ones."""
    match = re.match(r"(?:layers|blk)\.(\d{1,9})\.", name)
    return int(match.group(1)) if match else -1


def _adapt(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        if spec.attention_gate and ".self_attn.q_proj." in name:
            tensors[name] = replace(tensor, row_order=_queries_first(spec, tensor, f"{checkpoint.source}: {name}"))
        elif name.endswith("linear_attn.conv1d.weight"):
            tensors[name] = _tap_major(tensor, spec, f"{checkpoint.source}: {name}")
        else:
            tensors[name] = tensor
    return Checkpoint(checkpoint.source, tensors)


def _queries_first(spec: DecoderSpec, tensor: CheckpointTensor, field: str) -> RowOrder:
    """Return where the file keeps all queries, then all gates: it has each head's gate behind its query."""
    num_rows = 2 * spec.num_heads * spec.head_dim
    tensor.check_rows(num_rows, f"{field} (queries and their gates)")
    heads = np.arange(num_rows, dtype=np.int32).reshape(spec.num_heads, 2, spec.head_dim)
    order: RowOrder = heads.swapaxes(0, 1).reshape(-1)
    return order


def _tap_major(tensor: CheckpointTensor, spec: DecoderSpec, field: str) -> CheckpointTensor:
    """Return the taps [channels, 1, width] of a depthwise convolution as a vector [width, channels]."""
    assert spec.delta_net is not None, "of a spec with linear layers"
    channels, width = spec.delta_net.conv_channels, spec.delta_net.conv_width
    if tensor.shape not in ((channels, 1, width), (channels, width)):
        raise ModelLoadError(f"{field} is {list(tensor.shape)}, the config makes it {[channels, 1, width]}")
    order: RowOrder = np.arange(channels * width, dtype=np.int32).reshape(channels, width).T.reshape(-1)
    return replace(tensor, shape=(channels * width,), row_order=order)


def _decay(tensor: CheckpointTensor) -> CheckpointTensor:
    """Return -exp(A_log), rounded once."""
    values = -np.exp(tensor.values().astype(np.float64))
    data = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)
    return CheckpointTensor(GgufType.F32, tensor.shape, data)
