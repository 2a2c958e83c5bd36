"""What a model is made of, and what it takes in memory: from its config alone, or from its files where they are there.

The program is written and lowered as for a run, so that sizes are those of the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from octavo.cache_spec import AttentionGroupSpec, CacheGroupSpec, StateGroupSpec
from octavo.core.cache_groups import make_paged_groups
from octavo.formats.gguf_types import GgufType
from octavo.frontend.generation_defaults import RECOMMENDED
from octavo.frontend.machine import available_memory_bytes
from octavo.frontend.resolve import (
    cache_bytes,
    cache_dtype,
    describe,
    longest_model_len,
    make_program,
    scheduler_config,
)
from octavo.program.native import activation_bytes
from octavo.program.ops import Linear
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor
from octavo.weights.quantization import FLOAT_TYPES, quantized_checkpoint

if TYPE_CHECKING:
    from octavo.config import EngineConfig, Quantization
    from octavo.formats.gguf_types import GgufType
    from octavo.program.ops import Program, Weight

AS_STORED = "as stored"
REQUEST_LENGTHS = (512, 2_048, 8_192, 32_768, 131_072)
"""Tokens of the requests of which the report says how many fit."""
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class FormatShare:
    """The weights that are kept in one format."""

    format: str
    num_tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RequestsThatFit:
    """How many requests of one length the cache can hold at once."""

    num_tokens: int
    bytes_per_request: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The model as one way to load it leaves it: as stored, or with a `quantization`."""

    formats: Sequence[FormatShare]
    weight_bytes: int
    screen_bytes: int
    """Of the estimates that find the largest logits of an 8-bit head; made by the first step that can use them."""
    loaded_bytes: int
    """What an engine takes without its cache: weights, rotation tables, estimates, values of the largest step."""
    cache_bytes: int
    """What the cache may grow to on this machine now."""
    requests: Sequence[RequestsThatFit]


@dataclass(frozen=True, slots=True)
class CacheGroupReport:
    """Layers that share one kind of cache."""

    kind: str
    num_layers: int
    window: int | None
    bytes_per_token: int
    """0 for recurrent states: they do not grow."""
    bytes_per_request: Mapping[str, int]
    """Of a recurrent state by part; empty for keys and values."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The whole answer."""

    model: str
    architecture: str
    has_weights: bool
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    """As the options want it, else as the model was made for."""
    default_sampling_params: Mapping[str, float | None]
    """What a request gets that says nothing, of those that a generation config can set."""
    parameters: int
    embedding_parameters: int
    activation_bytes: int
    """Of the largest step."""
    max_num_batched_tokens: int
    rope_table_bytes: int
    """Cosines and sines of every position up to `max_model_len`."""
    kv_cache_dtype: str
    kv_bytes_per_token: int
    state_bytes_per_request: int
    """Without what prefix caching adds."""
    cache_groups: Sequence[CacheGroupReport]
    available_bytes: int
    loads: Mapping[str, LoadReport]
    ops: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """What lowering must know of a matrix that is not there."""

    N: int
    is_quantized: bool


@dataclass(frozen=True, slots=True)
class _Weights:
    """The same of all weights."""

    matrices: Mapping[str, Sequence[_Matrix]]
    vectors: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]


def inspect_model(config: EngineConfig) -> ModelReport:
    """Read a model's config, and its tensors' headers where they are there; load nothing.

    Raises: `ConfigError`, `ModelLoadError`.
    """
    model = describe(config)
    spec = model.spec
    program = make_program(config, spec, longest_model_len(config, spec))
    checkpoint = model.checkpoint or _imagined(program, model.float_type)
    checkpoint.check(program)
    scheduling = scheduler_config(config, program.max_model_len)
    ways = _ways(checkpoint, config.quantization)
    activations = max(_activation_bytes(program, way, scheduling.max_num_batched_tokens) for way in ways.values())
    available = available_memory_bytes()
    tables = sum(_FLOAT_BYTES * 2 * table.half * table.num_positions for table in program.rope_tables)
    loads = {name: _load_report(config, program, way, tables + activations, available) for name, way in ways.items()}
    groups = [_group_report(group) for group in program.cache_groups]
    sizes = {part.name: part.num_rows * prod(w.shape[1:]) for w in program.weights for part in w.parts}
    return ModelReport(
        model=config.model,
        architecture=model.architecture,
        has_weights=model.checkpoint is not None,
        num_layers=len(spec.layers),
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=program.max_model_len,
        default_sampling_params={name: getattr(model.default_sampling_params, name) for name in RECOMMENDED.values()},
        parameters=sum(sizes.values()),
        embedding_parameters=spec.vocab_size * spec.hidden_size,
        activation_bytes=activations,
        max_num_batched_tokens=scheduling.max_num_batched_tokens,
        rope_table_bytes=tables,
        kv_cache_dtype=cache_dtype(config),
        kv_bytes_per_token=sum(group.bytes_per_token for group in groups),
        state_bytes_per_request=sum(
            size for group in groups for part, size in group.bytes_per_request.items() if part != BORDER_PART
        ),
        cache_groups=groups,
        available_bytes=available,
        loads=loads,
        ops=[_op_line(op.kind, [w.name for w in op.weights]) for op in (*program.body, *program.head)],
    )


BORDER_PART = "convolution at the last border (for prefix caching)"


def _imagined(program: Program, kind: GgufType) -> Checkpoint:
    """Return the tensors that a program needs, without their bytes."""
    nothing = np.zeros(0, np.uint8)
    return Checkpoint(
        "the config",
        {
            part.name: CheckpointTensor(kind, (part.num_rows, *weight.shape[1:]), nothing)
            for weight in program.weights
            for part in weight.parts
        },
    )


def _ways(checkpoint: Checkpoint, wanted: Quantization | None) -> dict[str, Checkpoint]:
    """Return the ways to load a model: the one that was asked for, or all that there are."""
    if wanted is not None:
        return {wanted: quantized_checkpoint(checkpoint, wanted)}
    ways = {AS_STORED: checkpoint}
    if all(tensor.type in FLOAT_TYPES for tensor in checkpoint.tensors.values()):
        ways["q8"] = quantized_checkpoint(checkpoint, "q8")
        ways["q4"] = quantized_checkpoint(checkpoint, "q4")
    return ways


def _activation_bytes(program: Program, checkpoint: Checkpoint, max_num_tokens: int) -> int:
    def matrices(weight: Weight) -> list[_Matrix]:
        types = [checkpoint.tensors[part.name].packed_type for part in weight.parts]
        return [_Matrix(part.num_rows, kind not in FLOAT_TYPES) for part, kind in zip(weight.parts, types, strict=True)]

    weights = _Weights(
        {weight.name: matrices(weight) for weight in program.weights if weight.is_matrix},
        {weight.name: np.zeros(weight.shape, np.float32) for weight in program.weights if not weight.is_matrix},
    )
    short = replace(program, rope_tables=tuple(replace(table, num_positions=1) for table in program.rope_tables))
    return activation_bytes(short, weights, max_num_tokens=max_num_tokens)


def _load_report(
    config: EngineConfig, program: Program, checkpoint: Checkpoint, working_bytes: int, available: int
) -> LoadReport:
    """Return what one way to load takes, beside `working_bytes` for tables and values."""
    counts: dict[str, Counter[str]] = {}
    for weight in program.weights:
        for part in weight.parts:
            tensor = checkpoint.tensors[part.name]
            size = prod(tensor.shape)
            name = tensor.packed_type.name if weight.is_matrix else "F32"
            num_bytes = tensor.packed_bytes if weight.is_matrix else size * _FLOAT_BYTES
            counts.setdefault(name, Counter()).update(tensors=1, parameters=size, bytes=num_bytes)
    formats = [FormatShare(name, c["tensors"], c["parameters"], c["bytes"]) for name, c in counts.items()]
    formats.sort(key=lambda share: -share.bytes)
    weight_bytes = sum(share.bytes for share in formats)
    screen_bytes = _screen_bytes(program, checkpoint)
    loaded_bytes = weight_bytes + screen_bytes + working_bytes
    limit = cache_bytes(config, available - loaded_bytes)
    requests = []
    for length in REQUEST_LENGTHS:
        if length <= program.max_model_len:
            size = _request_bytes(program.cache_groups, length)
            requests.append(RequestsThatFit(length, size, limit // size))
    return LoadReport(formats, weight_bytes, screen_bytes, loaded_bytes, limit, requests)


def _screen_bytes(program: Program, checkpoint: Checkpoint) -> int:
    """Return what the first step that looks for largest logits makes of a head of 8 bits: see csrc/cpu/screen.h."""
    head = program.head[-1]
    if not isinstance(head, Linear) or head.bias or head.add_to or len(head.weight.parts) > 1:
        return 0
    if checkpoint.tensors[head.weight.parts[0].name].packed_type is not GgufType.Q8_0:
        return 0
    vocab_size, width = head.weight.shape
    return -(-vocab_size // 16) * (width // 32 * 416 + 64)


def _request_bytes(groups: Sequence[CacheGroupSpec], num_tokens: int) -> int:
    """Return what a request of so many tokens holds of all groups when it ends."""
    paged = make_paged_groups(groups)
    num_bytes = sum(groups[group.group].block_bytes * group.most_blocks(num_tokens, 1) for group in paged)
    return num_bytes + sum(group.block_bytes for group in groups if isinstance(group, StateGroupSpec))


def _group_report(group: CacheGroupSpec) -> CacheGroupReport:
    if isinstance(group, AttentionGroupSpec):
        return CacheGroupReport(group.kind, group.num_layers, group.window, group.block_bytes // group.block_size, {})
    return CacheGroupReport(group.kind, group.num_layers, None, 0, _state_parts(group))


def _state_parts(group: StateGroupSpec) -> dict[str, int]:
    layers = group.num_layers * _FLOAT_BYTES
    parts = {
        "state": layers * group.state_floats,
        "convolution": layers * group.conv_floats,
        "open rows": layers * group.open_floats,
    }
    if group.keeps_border:
        parts[BORDER_PART] = layers * group.conv_floats
    return parts


def _op_line(kind: str, weights: Sequence[str]) -> str:
    return f"{kind:<18} {', '.join(weights)}".rstrip()
