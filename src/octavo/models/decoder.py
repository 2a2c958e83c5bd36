"""The decoder-only transformer as a program: one function for every family that `DecoderSpec` can describe."""

from __future__ import annotations

from octavo.cache_spec import AttentionGroupSpec, CacheDtype, CacheGroupSpec
from octavo.models.base import DecoderSpec, LayerSpec
from octavo.models.decoder_weights import (
    LayerWeights,
    LinearWeights,
    embedding_weight,
    final_norm_weight,
    head_weight,
    layer_weights,
)
from octavo.models.rope import make_rope_table
from octavo.program.builder import ProgramBuilder
from octavo.program.ops import CacheRef, Program, RopeTable, Value


def build_program(spec: DecoderSpec, *, max_model_len: int, block_size: int, cache_dtype: CacheDtype) -> Program:
    """Write the program of one model."""
    groups, caches = _cache_layout(spec, block_size, cache_dtype)
    tables = _rope_tables(spec, max_model_len)
    b = ProgramBuilder(groups, max_model_len=max_model_len)
    x = b.embedding(embedding_weight(spec), scale=spec.embed_scale)
    for index, layer in enumerate(spec.layers):
        x = _decoder_layer(b, x, spec, layer, layer_weights(spec, index), caches[index], tables[layer])
    x = b.gather_rows(x)
    x = b.rms_norm(x, final_norm_weight(spec), eps=spec.eps)
    logits = b.linear(x, head_weight(spec))
    if spec.final_softcap is not None:
        logits = b.softcap(logits, spec.final_softcap)
    return b.finish(logits)


def _decoder_layer(
    b: ProgramBuilder,
    x: Value,
    spec: DecoderSpec,
    layer: LayerSpec,
    w: LayerWeights,
    cache: CacheRef,
    table: RopeTable,
) -> Value:
    """Write one layer: attention, then the feed-forward part, each added to x."""
    h = b.rms_norm(x, w.input_layernorm, eps=spec.eps)
    h = _attention(b, h, spec, layer, w, cache, table)
    if w.pre_feedforward_layernorm is None:
        x = _linear(b, h, w.o_proj, add_to=x)
        h = b.rms_norm(x, w.post_attention_layernorm, eps=spec.eps)
    else:
        h = b.rms_norm(_linear(b, h, w.o_proj), w.post_attention_layernorm, eps=spec.eps)
        x = b.add(h, x)
        h = b.rms_norm(x, w.pre_feedforward_layernorm, eps=spec.eps)
    h = _linear(b, h, w.gate_up_proj)
    h = b.swiglu(h) if spec.activation == "silu" else b.geglu(h)
    if w.post_feedforward_layernorm is None:
        return _linear(b, h, w.down_proj, add_to=x)
    h = b.rms_norm(_linear(b, h, w.down_proj), w.post_feedforward_layernorm, eps=spec.eps)
    return b.add(h, x)


def _attention(
    b: ProgramBuilder,
    h: Value,
    spec: DecoderSpec,
    layer: LayerSpec,
    w: LayerWeights,
    cache: CacheRef,
    table: RopeTable,
) -> Value:
    """Write attention up to its output projection: [T, H * D]."""
    sizes = [num_heads * spec.head_dim for num_heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)]
    q, k, v = b.linear_split(h, w.qkv_proj.weight, sizes, bias=w.qkv_proj.bias)
    if w.q_norm is not None and w.k_norm is not None:
        q = b.rms_norm(q, w.q_norm, eps=spec.eps)
        k = b.rms_norm(k, w.k_norm, eps=spec.eps)
    q, k = b.rope(q, k, table, head_dim=spec.head_dim)
    b.kv_write(k, v, cache)
    return b.paged_attention(q, cache, scale=spec.attention_scale, window=layer.window, softcap=spec.attention_softcap)


def _linear(b: ProgramBuilder, x: Value, w: LinearWeights, *, add_to: Value | None = None) -> Value:
    return b.linear(x, w.weight, bias=w.bias, add_to=add_to)


def _cache_layout(
    spec: DecoderSpec, block_size: int, cache_dtype: CacheDtype
) -> tuple[list[CacheGroupSpec], list[CacheRef]]:
    """Return the cache groups, one for each window in order of appearance, and each layer's place."""
    windows = [layer.window for layer in spec.layers]
    group_of = {window: group for group, window in enumerate(dict.fromkeys(windows))}
    refs = [CacheRef(group_of[window], windows[:index].count(window)) for index, window in enumerate(windows)]
    groups: list[CacheGroupSpec] = [
        AttentionGroupSpec(
            kind="full" if window is None else "sliding",
            num_layers=windows.count(window),
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=cache_dtype,
            block_size=block_size,
            window=window,
        )
        for window in group_of
    ]
    return groups, refs


def _rope_tables(spec: DecoderSpec, max_model_len: int) -> dict[LayerSpec, RopeTable]:
    """Return the table of each kind of layer; kinds with the same rotation share one."""
    ropes = list(dict.fromkeys(layer.rope for layer in spec.layers))
    tables = {rope: make_rope_table(f"rope.{i}", rope, max_model_len) for i, rope in enumerate(ropes)}
    return {layer: tables[layer.rope] for layer in spec.layers}
