"""Programs of random ops over random earlier values: what no model would write, so that liveness is tried hard."""

from __future__ import annotations

import numpy as np
from tiny_programs import BLOCK_SIZE, MAX_MODEL_LEN, make_weight

from octavo.cache_spec import AttentionGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.ops import CacheRef, Program, RopeTable, Value

WIDTH = 64
"""Of all values that stay around: two kv heads of 16, or four query heads."""
VOCAB = 53


def make_random_program(seed: int, num_ops: int = 14) -> Program:
    rng = np.random.default_rng(seed)
    group = AttentionGroupSpec("full", num_ops, 2, 16, "float32", BLOCK_SIZE)
    b = ProgramBuilder([group], max_model_len=MAX_MODEL_LEN)
    table = RopeTable("rope", tuple(10000.0 ** (-i / 8) for i in range(8)), 1.0, MAX_MODEL_LEN)
    values = [b.embedding(make_weight("embed", VOCAB, WIDTH))]

    def pick() -> Value:
        recent = values[-4:] if rng.random() < 0.7 else values
        return recent[rng.integers(len(recent))]

    for step in range(num_ops):
        name = f"op{step}"
        x, y = pick(), pick()
        match rng.choice(["norm", "linear", "sum", "gate", "add", "mul", "scale", "softcap", "attention"]):
            case "norm":
                heads = rng.choice([1, 4])
                new = b.rms_norm(x, make_weight(name, WIDTH // heads), eps=1e-5)
            case "linear":
                new = b.linear(x, make_weight(name, WIDTH, WIDTH), bias=make_weight(f"{name}.bias", WIDTH))
            case "sum":
                new = b.linear(x, make_weight(name, WIDTH, WIDTH), add_to=y)
            case "gate":
                both = b.linear(x, make_weight(name, 2 * WIDTH, WIDTH, parts=(WIDTH, WIDTH)))
                new = b.swiglu(both) if rng.random() < 0.5 else b.geglu(both)
            case "add":
                new = b.add(x, y)
            case "mul":
                new = b.mul(b.softcap(x, 2.0), b.softcap(y, 2.0))
            case "scale":
                new = b.scale(x, 0.7)
            case "softcap":
                new = b.softcap(x, 3.0)
            case _:
                sizes = (WIDTH, 32, 32)
                q, k, v = b.linear_split(x, make_weight(name, sum(sizes), WIDTH), sizes)
                turned, k = b.rope(q, k, table, head_dim=16)
                b.kv_write(k, v, CacheRef(0, step))
                new = b.add(b.paged_attention(turned, CacheRef(0, step), scale=0.25), q)
        values.append(b.softcap(new, 4.0) if rng.random() < 0.3 else new)
    hidden = b.rms_norm(values[-1], make_weight("last", WIDTH), eps=1e-5)
    x = b.gather_rows(b.linear(hidden, make_weight("mix", WIDTH, WIDTH), add_to=values[1]))
    h = b.rms_norm(x, make_weight("norm", WIDTH), eps=1e-5)
    return b.finish(b.linear(b.add(h, x), make_weight("head", VOCAB, WIDTH)))
