"""The decoder-only transformer as a program: one function for every family that `DecoderSpec` can describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.cache_spec import AttentionGroupSpec, CacheDtype, CacheGroupSpec
from octavo.models import delta_net
from octavo.models.base import DecoderSpec, LayerSpec
from octavo.models.decoder_weights import (
    AttentionWeights,
    DeltaNetWeights,
    embedding_weight,
    final_norm_weight,
    head_weight,
    layer_weights,
)
from octavo.models.feed_forward import feed_forward
from octavo.models.rope import RopeSpec, make_rope_table
from octavo.program.builder import ProgramBuilder
from octavo.program.ops import CacheRef, Program, RopeTable, Value, Weight


def build_program(
    spec: DecoderSpec, *, max_model_len: int, block_size: int, cache_dtype: CacheDtype, keeps_border: bool = True
) -> Program:
    """Write the program of one model.

    Args:
        keeps_border: whether recurrent layers keep what a snapshot needs; prefix caching wants it.
    """
    groups, caches = _cache_layout(spec, block_size, cache_dtype, keeps_border)
    tables = _rope_tables(spec, max_model_len)
    b = ProgramBuilder(groups, max_model_len=max_model_len)
    x = b.embedding(embedding_weight(spec), scale=spec.embed_scale)
    for index in range(len(spec.layers)):
        x = _decoder_layer(b, x, spec, index, caches[index], tables)
    x = b.gather_rows(x)
    x = b.rms_norm(x, final_norm_weight(spec), eps=spec.eps)
    logits = b.linear(x, head_weight(spec))
    if spec.logit_scale != 1.0:
        logits = b.scale(logits, spec.logit_scale)
    if spec.final_softcap is not None:
        logits = b.softcap(logits, spec.final_softcap)
    pooled = b.rms_norm(b.start_pool(), final_norm_weight(spec), eps=spec.eps)
    return b.finish(logits, pooled)


def _decoder_layer(
    b: ProgramBuilder,
    x: Value,
    spec: DecoderSpec,
    index: int,
    cache: CacheRef,
    tables: Mapping[RopeSpec, RopeTable],
) -> Value:
    """Write one layer: what mixes tokens, then the feed-forward part, each added to x."""
    layer, w = spec.layers[index], layer_weights(spec, index)
    h = _norm(b, x, w.pre_mixer_norm, spec)
    if isinstance(w.mixer, DeltaNetWeights):
        h = delta_net.write_mixer(b, h, spec, w.mixer, cache)
    else:
        table = None if layer.rope is None else tables[layer.rope]
        h = _attention(b, h, spec, layer, w.mixer, cache, table)
    mixed, o_proj = h, w.mixer.o_proj
    x = _add_to(
        b, x, spec, w.post_mixer_norm, lambda add_to: b.linear(mixed, o_proj.weight, bias=o_proj.bias, add_to=add_to)
    )
    h = _norm(b, x, w.pre_ffn_norm, spec)
    return _add_to(
        b, x, spec, w.post_ffn_norm, lambda add_to: feed_forward(b, h, spec, layer.ffn, f"layers.{index}.mlp", add_to)
    )


def _norm(b: ProgramBuilder, x: Value, weight: Weight | None, spec: DecoderSpec) -> Value:
    return x if weight is None else b.rms_norm(x, weight, eps=spec.eps)


def _add_to(
    b: ProgramBuilder, x: Value, spec: DecoderSpec, norm: Weight | None, write: Callable[[Value | None], Value]
) -> Value:
    """Add a sub-layer's result to x: in its last op, unless it is normed or scaled before."""
    if norm is None and spec.residual_scale == 1.0:
        return write(x)
    y = _norm(b, write(None), norm, spec)
    if spec.residual_scale != 1.0:
        y = b.scale(y, spec.residual_scale)
    return b.add(y, x)


def _attention(
    b: ProgramBuilder,
    h: Value,
    spec: DecoderSpec,
    layer: LayerSpec,
    w: AttentionWeights,
    cache: CacheRef,
    table: RopeTable | None,
) -> Value:
    """Write attention up to its output projection: [T, H * D]."""
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    gate_sizes = [q_size] if spec.attention_gate else []
    sizes = [q_size, *gate_sizes, kv_size, kv_size]
    q, *gates, k, v = b.linear_split(h, w.qkv_proj.weight, sizes, bias=w.qkv_proj.bias)
    if w.q_norm is not None and w.k_norm is not None:
        q = b.rms_norm(q, w.q_norm, eps=spec.eps)
        k = b.rms_norm(k, w.k_norm, eps=spec.eps)
    if table is not None:
        q, k = b.rope(q, k, table, head_dim=spec.head_dim)
    b.kv_write(k, v, cache)
    out = b.paged_attention(q, cache, scale=spec.attention_scale, window=layer.window, softcap=spec.attention_softcap)
    return b.mul_by_gate(out, gates[0], "sigmoid") if gates else out


def _cache_layout(
    spec: DecoderSpec, block_size: int, cache_dtype: CacheDtype, keeps_border: bool
) -> tuple[list[CacheGroupSpec], list[CacheRef]]:
    """Return the cache groups, and each layer's place.

    One group for each window in order of appearance, and the last for all recurrent layers.
    """
    kinds = [(layer.mixer, layer.window) for layer in spec.layers]
    order = sorted(dict.fromkeys(kinds), key=lambda kind: kind[0] == "delta_net")
    refs = [CacheRef(order.index(kind), kinds[:index].count(kind)) for index, kind in enumerate(kinds)]
    groups: list[CacheGroupSpec] = []
    for mixer, window in order:
        num_layers = kinds.count((mixer, window))
        if mixer == "delta_net":
            groups.append(delta_net.state_group(spec, num_layers, block_size, keeps_border=keeps_border))
            continue
        groups.append(
            AttentionGroupSpec(
                kind="full" if window is None else "sliding",
                num_layers=num_layers,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                dtype=cache_dtype,
                block_size=block_size,
                window=window,
            )
        )
    return groups, refs


def _rope_tables(spec: DecoderSpec, max_model_len: int) -> dict[RopeSpec, RopeTable]:
    """Return the table of each rotation that attention layers have."""
    ropes = dict.fromkeys(layer.rope for layer in spec.layers if layer.mixer == "attention" and layer.rope is not None)
    return {rope: make_rope_table(f"rope.{i}", rope, max_model_len) for i, rope in enumerate(ropes)}
