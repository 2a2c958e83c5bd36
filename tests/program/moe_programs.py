"""Small programs with mixtures of experts, and weights that route as a test wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tiny_programs import BLOCK_SIZE, MAX_MODEL_LEN, Weights, make_weight

from octavo.cache_spec import AttentionGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.moe_ops import Routing
from octavo.program.ops import Gate, Program

VOCAB = 101
TWO_OF_FIVE = Routing(5, 2, "softmax")


@dataclass(frozen=True)
class Mixture:
    """Two layers of experts, and nothing else: a row depends on its token alone."""

    routing: Routing = TWO_OF_FIVE
    hidden: int = 96
    ffn: int = 48
    gate: Gate = "silu"
    choice_bias: bool = False
    shared: bool = False
    add_to: bool = True


def make_moe_program(mixture: Mixture = Mixture()) -> Program:
    m = mixture
    b = ProgramBuilder([AttentionGroupSpec("full", 1, 1, 16, "float32", BLOCK_SIZE)], max_model_len=MAX_MODEL_LEN)
    x = b.embedding(make_weight("embed", VOCAB, m.hidden))
    for layer in range(2):
        p = f"layers.{layer}"
        h = b.rms_norm(x, make_weight(f"{p}.norm", m.hidden), eps=1e-5)
        num_experts = m.routing.num_experts
        bias = make_weight(f"{p}.bias", num_experts) if m.choice_bias else None
        routes = b.route(h, make_weight(f"{p}.router", num_experts, m.hidden), m.routing, choice_bias=bias)
        experts = [f"{p}.{expert}" for expert in range(num_experts)]
        gate_up = [make_weight(f"{name}.gate_up", 2 * m.ffn, m.hidden, parts=(m.ffn, m.ffn)) for name in experts]
        down = [make_weight(f"{name}.down", m.hidden, m.ffn) for name in experts]
        y = b.moe(h, routes, gate_up, down, gate=m.gate, add_to=x if m.add_to else None)
        if m.shared:
            both = b.linear(h, make_weight(f"{p}.shared.gate_up", 2 * m.ffn, m.hidden))
            all_rows = b.linear(b.swiglu(both), make_weight(f"{p}.shared.down", m.hidden, m.ffn))
            factor = b.linear(h, make_weight(f"{p}.shared.gate", 1, m.hidden))
            y = b.add(y, b.mul_by_gate(all_rows, factor, "sigmoid"))
        x = y if m.add_to else b.add(y, x)
    h = b.rms_norm(b.gather_rows(x), make_weight("norm", m.hidden), eps=1e-5)
    return b.finish(b.linear(h, make_weight("head", VOCAB, m.hidden)))


def set_choice(weights: Weights, values: Any) -> None:
    """Make the biases of the choice what a test wants: [experts]."""
    for name in weights.vectors:
        if name.endswith(".bias"):
            weights.vectors[name] = weights.values[name] = np.asarray(values, np.float32)
