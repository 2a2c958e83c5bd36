"""The feed-forward part of a layer: one gated network, or a mixture of experts. Names of its weights, and its ops."""

from __future__ import annotations

from octavo.models.base import DecoderSpec, FeedForward, MoeSpec
from octavo.models.decoder_weights import linear, matrix, vector
from octavo.program.builder import ProgramBuilder
from octavo.program.ops import Gate, Value, Weight


def feed_forward(
    b: ProgramBuilder, h: Value, spec: DecoderSpec, kind: FeedForward, prefix: str, add_to: Value | None
) -> Value:
    """Write the part whose weights begin with `prefix`, for normed rows h (+ add_to)."""
    if kind == "dense":
        return _gated(b, h, spec.activation, prefix, spec.ffn_size, add_to, has_bias=spec.mlp_bias)
    assert spec.moe is not None, "a spec with moe layers has their experts"
    return _mixture(b, h, spec.moe, spec.activation, prefix, add_to)


def _mixture(b: ProgramBuilder, h: Value, moe: MoeSpec, gate: Gate, prefix: str, add_to: Value | None) -> Value:
    """Write the chosen experts, then the one that all rows take."""
    num_experts = moe.routing.num_experts
    router = matrix(f"{prefix}.gate.weight", num_experts, h.width)
    bias = vector(f"{prefix}.gate.e_score_correction_bias", num_experts) if moe.choice_bias else None
    routes = b.route(h, router, moe.routing, choice_bias=bias)
    experts = [f"{prefix}.experts.{expert}" for expert in range(num_experts)]
    gate_up = [_gate_up(name, moe.ffn_size, h.width) for name in experts]
    down = [_down(name, moe.ffn_size, h.width) for name in experts]
    y = b.moe(h, routes, gate_up, down, gate=gate, add_to=add_to)
    if moe.shared is None:
        return y
    shared = f"{prefix}.shared_expert"
    if not moe.shared.is_gated:
        return _gated(b, h, gate, shared, moe.shared.ffn_size, y)
    factor = b.linear(h, matrix(f"{shared}_gate.weight", 1, h.width))
    return b.add(y, b.mul_by_gate(_gated(b, h, gate, shared, moe.shared.ffn_size, None), factor, "sigmoid"))


def _gated(
    b: ProgramBuilder, h: Value, gate: Gate, prefix: str, ffn_size: int, add_to: Value | None, has_bias: bool = False
) -> Value:
    """Write down(gate(x) * up(x)) (+ add_to)."""
    parts = {f"{prefix}.gate_proj": ffn_size, f"{prefix}.up_proj": ffn_size}
    gate_up = linear(f"{prefix}.gate_up_proj", parts, h.width, has_bias)
    down = linear(f"{prefix}.down_proj", {f"{prefix}.down_proj": h.width}, ffn_size, has_bias)
    h = b.linear(h, gate_up.weight, bias=gate_up.bias)
    h = b.swiglu(h) if gate == "silu" else b.geglu(h)
    return b.linear(h, down.weight, bias=down.bias, add_to=add_to)


def _gate_up(prefix: str, ffn_size: int, hidden_size: int) -> Weight:
    parts = {f"{prefix}.gate_proj": ffn_size, f"{prefix}.up_proj": ffn_size}
    return linear(f"{prefix}.gate_up_proj", parts, hidden_size, has_bias=False).weight


def _down(prefix: str, ffn_size: int, hidden_size: int) -> Weight:
    return matrix(f"{prefix}.down_proj.weight", hidden_size, ffn_size)
