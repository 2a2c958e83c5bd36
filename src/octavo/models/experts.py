"""Experts as the program wants them, a matrix each, from files that stack them in one tensor or fuse gate and up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from octavo.errors import ModelLoadError
from octavo.models.base import DecoderSpec
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor

_STACK = re.compile(r"(layers\.\d+\.mlp\.experts)\.(gate|up|down|gate_up)_proj(?:\.weight)?")
_SHARED_GATE = re.compile(r"layers\.\d+\.mlp\.shared_expert_gate\.weight")


def split_experts(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the checkpoint with a tensor for each expert. Nothing is copied.

    Raises: ModelLoadError for a stack that has not the experts of the config.
    """
    tensors: dict[str, CheckpointTensor] = {}
    for name, tensor in checkpoint.tensors.items():
        match = _STACK.fullmatch(name)
        if match is not None:
            tensors.update(_parts(match[1], match[2], tensor, spec, f"{checkpoint.source}: tensor {name}"))
        elif _SHARED_GATE.fullmatch(name) and len(tensor.shape) == 1:
            tensors[name] = replace(tensor, shape=(1, *tensor.shape))
        else:
            tensors[name] = tensor
    return Checkpoint(checkpoint.source, tensors)


def _parts(
    prefix: str, role: str, stack: CheckpointTensor, spec: DecoderSpec, field: str
) -> Iterator[tuple[str, CheckpointTensor]]:
    """Cut a stack [experts, rows, columns] into the matrices of its experts."""
    num_experts = spec.moe.routing.num_experts if spec.moe else 0
    if len(stack.shape) != 3 or stack.shape[0] != num_experts:
        raise ModelLoadError(f"{field} is {list(stack.shape)}, expected the matrices of {num_experts} experts")
    names = ["gate", "up"] if role == "gate_up" else [role]
    _, num_rows, width = stack.shape
    rows, rest = divmod(num_rows, len(names))
    if rest:
        raise ModelLoadError(f"{field} is {list(stack.shape)}: {num_rows} rows are not those of gate and up")
    size = stack.num_bytes // (num_experts * len(names))
    for expert in range(num_experts):
        for index, name in enumerate(names, start=expert * len(names)):
            data = stack.data[index * size : (index + 1) * size]
            yield f"{prefix}.{expert}.{name}_proj.weight", replace(stack, shape=(rows, width), source=data)
