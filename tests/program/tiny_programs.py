"""Small random programs, weights and batches for tests of whatever runs a Program."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.cache_spec import AttentionGroupSpec, CacheDtype, StateGroupSpec
from octavo.formats.gguf_quants import dequantize_bytes
from octavo.formats.gguf_types import GgufType
from octavo.program.builder import ProgramBuilder
from octavo.program.forward_batch import ForwardBatch, SampleBatch, SeatTables, greedy_choices
from octavo.program.native import NativeProgram
from octavo.program.ops import CacheRef, Program, RopeTable, Weight, WeightPart
from octavo.program.reference import ReferenceExecutor, ReferenceWeights
from octavo.weights.packing import NATIVE_FORMATS

NUM_BLOCKS = 24
BLOCK_SIZE = 16
MAX_MODEL_LEN = 128
MAX_NUM_TOKENS = 96


def make_weight(name: str, *shape: int, parts: tuple[int, ...] = ()) -> Weight:
    rows = parts or (shape[0],)
    names = [f"{name}.{i}" for i in range(len(rows))] if parts else [name]
    return Weight(name, shape, tuple(map(WeightPart, names, rows)))


@dataclass(frozen=True)
class Shape:
    """Of a tiny decoder. Odd widths on purpose: nothing is a multiple of a panel."""

    hidden: int = 96
    ffn: int = 160
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 101
    layers: int = 2
    window: int | None = None
    cache_dtype: CacheDtype = "float32"
    gemma_like: bool = False
    """Norms after the mixers too, norms of q and k, geglu, a scaled embedding, soft-capped logits."""


def make_program(shape: Shape = Shape()) -> Program:
    s = shape
    full = AttentionGroupSpec("full", s.layers, s.num_kv_heads, s.head_dim, s.cache_dtype, BLOCK_SIZE)
    sliding = AttentionGroupSpec("sliding", s.layers, s.num_kv_heads, s.head_dim, s.cache_dtype, BLOCK_SIZE, s.window)
    b = ProgramBuilder([full, sliding] if s.window else [full], max_model_len=MAX_MODEL_LEN)
    inv_freq = tuple(10000.0 ** (-i / (s.head_dim // 2)) for i in range(s.head_dim // 2))
    table = RopeTable("rope", inv_freq, 1.0, MAX_MODEL_LEN)
    qkv = (s.num_heads * s.head_dim, s.num_kv_heads * s.head_dim, s.num_kv_heads * s.head_dim)
    embed = make_weight("embed", s.vocab, s.hidden)
    x = b.embedding(embed, scale=2.5 if s.gemma_like else 1.0)
    for layer in range(s.layers):
        group = layer % 2 if s.window else 0
        cache, window = CacheRef(group, layer), s.window if group else None
        p = f"layers.{layer}"
        h = b.rms_norm(x, make_weight(f"{p}.input_norm", s.hidden), eps=1e-5)
        bias = make_weight(f"{p}.qkv.bias", sum(qkv))
        q, k, v = b.linear_split(h, make_weight(f"{p}.qkv", sum(qkv), s.hidden, parts=qkv), qkv, bias=bias)
        if s.gemma_like:
            q = b.rms_norm(q, make_weight(f"{p}.q_norm", s.head_dim), eps=1e-6)
            k = b.rms_norm(k, make_weight(f"{p}.k_norm", s.head_dim), eps=1e-6)
        q, k = b.rope(q, k, table, head_dim=s.head_dim)
        b.kv_write(k, v, cache)
        a = b.paged_attention(q, cache, scale=s.head_dim**-0.5, window=window)
        o_proj = make_weight(f"{p}.o", s.hidden, qkv[0])
        if s.gemma_like:
            x = b.add(x, b.rms_norm(b.linear(a, o_proj), make_weight(f"{p}.post_norm", s.hidden), eps=1e-6))
        else:
            x = b.linear(a, o_proj, add_to=x)
        h = b.rms_norm(x, make_weight(f"{p}.mlp_norm", s.hidden), eps=1e-5)
        gate_up = make_weight(f"{p}.gate_up", 2 * s.ffn, s.hidden, parts=(s.ffn, s.ffn))
        down = make_weight(f"{p}.down", s.hidden, s.ffn)
        if s.gemma_like:
            x = b.add(b.linear(b.geglu(b.linear(h, gate_up)), down), b.scale(x, 0.5))
        else:
            x = b.linear(b.swiglu(b.linear(h, gate_up)), down, add_to=x)
    h = b.rms_norm(b.gather_rows(x), make_weight("norm", s.hidden), eps=1e-5)
    logits = b.linear(h, embed)
    logits = b.softcap(logits, 5.0) if s.gemma_like else logits
    return b.finish(logits, b.rms_norm(b.start_pool(), make_weight("norm", s.hidden), eps=1e-5))


@dataclass
class Weights:
    """What the native program and the oracle read: the same numbers."""

    matrices: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    quantized: set[str] = field(default_factory=set)


def make_weights(
    program: Program, module: Any, formats: Sequence[GgufType] = (GgufType.F32,), seed: int = 0, keep_float: str = "-"
) -> Weights:
    """Random weights; matrices take the formats in turn, part by part, but for those whose name has `keep_float`."""
    rng = np.random.default_rng(seed)
    weights = Weights()
    turn = itertools.cycle(formats)
    for weight in program.weights:
        for part in weight.parts:
            if weight.is_matrix:
                kind = GgufType.F32 if keep_float in weight.name else next(turn)
                scale = 1.0 if weight.name == "embed" else weight.shape[1] ** -0.5
                rows = make_rows(kind, part.num_rows, weight.shape[1], scale, rng)
                matrix = module.PackedMatrix.pack(NATIVE_FORMATS[kind], [rows], part.num_rows, weight.shape[1])
                weights.matrices[weight.name] = (*weights.matrices.get(weight.name, ()), matrix)
                weights.values[part.name] = dequantize_bytes(rows, kind).reshape(part.num_rows, -1)
                if kind not in (GgufType.F32, GgufType.F16, GgufType.BF16):
                    weights.quantized.add(part.name)
            else:
                values = 1 + rng.standard_normal(part.num_rows, dtype=np.float32) * np.float32(0.2)
                weights.values[part.name] = weights.vectors[weight.name] = values
    return weights


SCALE_FIELDS: dict[GgufType, tuple[tuple[int, float], ...]] = {
    GgufType.Q4_0: ((0, 0.22),),
    GgufType.Q4_1: ((0, 0.22), (2, -1.65)),
    GgufType.Q5_0: ((0, 0.11),),
    GgufType.Q5_1: ((0, 0.11), (2, -1.7)),
    GgufType.Q8_0: ((0, 0.0135),),
    GgufType.Q4_K: ((0, 0.007), (2, 0.05)),
    GgufType.Q5_K: ((0, 0.0035), (2, 0.05)),
    GgufType.Q6_K: ((208, 0.00075),),
}
"""Per format, where a block keeps its float16 scale and minimum, and values that make random bits about N(0, 1)."""


def make_rows(kind: GgufType, num_rows: int, width: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Return the bytes of random rows in a file's format: [rows, bytes]."""
    if kind in SCALE_FIELDS:
        blocks = rng.integers(0, 256, (num_rows * width // kind.block_elements, kind.block_bytes), dtype=np.uint8)
        for offset, value in SCALE_FIELDS[kind]:
            blocks[:, offset : offset + 2] = np.frombuffer(np.float16(value * scale).tobytes(), np.uint8)
        return blocks.reshape(num_rows, -1)
    values = rng.standard_normal((num_rows, width), dtype=np.float32) * np.float32(scale)
    if kind is GgufType.F16:
        return values.astype(np.float16).view(np.uint8)
    if kind is GgufType.BF16:
        return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
    return values.view(np.uint8)


def make_pools(program: Program) -> list[np.ndarray]:
    return [np.zeros(NUM_BLOCKS * spec.block_bytes, np.uint8) for spec in program.cache_groups]


def make_native(program: Program, weights: Weights, module: Any, **options: Any) -> NativeProgram:
    arguments: dict[str, Any] = {
        "cache_groups": program.cache_groups,
        "pools": make_pools(program),
        "max_num_tokens": MAX_NUM_TOKENS,
        "max_num_seqs": 8,
        "max_model_len": MAX_MODEL_LEN,
        "num_threads": 2,
        "activation_quantization": False,
        "isa_module": module,
    }
    return NativeProgram(program, weights, **{**arguments, **options})


def make_oracle(program: Program, weights: Weights, **options: Any) -> ReferenceExecutor:
    reference = ReferenceWeights(weights.values, frozenset(weights.quantized))
    return ReferenceExecutor(program, reference, [NUM_BLOCKS] * len(program.cache_groups), **options)


def make_batch(program: Program, chunks: list[tuple[int, int]], seed: int = 0) -> ForwardBatch:
    """One request per chunk (first position, rows); request r owns slot r, and blocks r, r + R, r + 2R … of a group."""
    rng = np.random.default_rng(seed)
    num_requests = len(chunks)
    longest = max(start + count for start, count in chunks)
    tokens = rng.integers(0, program.vocab_size, (num_requests, MAX_MODEL_LEN)).astype(np.int32)
    num_blocks = -(-longest // BLOCK_SIZE)
    table = (np.arange(num_blocks)[None, :] * num_requests + np.arange(num_requests)[:, None]).astype(np.int32)
    is_state = [isinstance(group, StateGroupSpec) for group in program.cache_groups]
    state_table = np.arange(num_requests, dtype=np.int32)[:, None].copy()
    starts, counts = np.array(chunks, np.int32).T.copy()
    tables = SeatTables(tokens, tuple(state_table if state else table for state in is_state))
    return ForwardBatch(tables, np.arange(num_requests, dtype=np.int32), starts, counts)


def make_sample_batch(rows: list[int]) -> SampleBatch:
    """Greedy rows without edits."""
    return SampleBatch(greedy_choices(rows), -1)
