"""Projections that a file keeps in one tensor, cut into the matrices that the program names. Nothing is copied.

What is made on demand is made once for the parts that are in use together.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from octavo.errors import ModelLoadError
from octavo.formats.mapped_file import ByteView
from octavo.models.base import DecoderSpec
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor

_FUSED = re.compile(r"(layers\.\d+\.)(self_attn\.qkv|mlp\.gate_up)_proj\.(weight|bias)")


def split_fused(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the checkpoint with q, k and v, and gate and up, each by itself.

    Raises: ModelLoadError for a tensor that has not the rows of the config.
    """
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    parts_of = {
        "self_attn.qkv": {"self_attn.q_proj": q_size, "self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size},
        "mlp.gate_up": {"mlp.gate_proj": spec.ffn_size, "mlp.up_proj": spec.ffn_size},
    }
    tensors: dict[str, CheckpointTensor] = {}
    for name, tensor in checkpoint.tensors.items():
        match = _FUSED.fullmatch(name)
        if match is None:
            tensors[name] = tensor
            continue
        layer, role, kind = match.groups()
        cut = _cut(tensor, parts_of[role], f"{checkpoint.source}: tensor {name}")
        tensors.update({f"{layer}{part}.{kind}": piece for part, piece in cut.items()})
    return Checkpoint(checkpoint.source, tensors)


def split_fused_gguf(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the same of a GGUF file, where gate and up are together under the name of up."""
    tensors = {name.replace(".mlp.up_", ".mlp.gate_up_"): tensor for name, tensor in checkpoint.tensors.items()}
    return split_fused(Checkpoint(checkpoint.source, tensors), spec)


def _cut(tensor: CheckpointTensor, parts: Mapping[str, int], field: str) -> dict[str, CheckpointTensor]:
    """Return the rows of each part."""
    num_rows = sum(parts.values())
    if not tensor.shape or tensor.shape[0] != num_rows or tensor.num_bytes % num_rows:
        wanted = " + ".join(str(size) for size in parts.values())
        is_now = f"{list(tensor.shape)}, {tensor.type.name}"
        raise ModelLoadError(f"{field} is {is_now}: the config makes it {wanted} rows of whole bytes")
    row_bytes = tensor.num_bytes // num_rows
    whole = _SharedBytes(tensor)
    pieces, first = {}, 0
    for part, size in parts.items():
        begin, end = first * row_bytes, (first + size) * row_bytes
        source = partial(whole.cut, begin, end) if callable(tensor.source) else tensor.source[begin:end]
        pieces[part] = replace(tensor, shape=(size, *tensor.shape[1:]), source=source)
        first += size
    return pieces


class _SharedBytes:
    """The bytes of a tensor that are made on demand, kept for as long as somebody holds a part of them."""

    def __init__(self, tensor: CheckpointTensor) -> None:
        self._tensor = tensor
        self._made: weakref.ref[ByteView] | None = None

    def cut(self, begin: int, end: int) -> ByteView:
        """Return a view of some of the bytes."""
        whole = self._made() if self._made is not None else None
        if whole is None:
            # Views of an array that is itself a view refer to what that is one of, but not through a memoryview.
            whole = np.frombuffer(self._tensor.data.data, np.uint8)
            self._made = weakref.ref(whole)
        return whole[begin:end]
