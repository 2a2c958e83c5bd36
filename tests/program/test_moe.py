"""Mixtures of experts in native code: the oracle's numbers, and the same bits whoever shares a row's experts."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from moe_programs import Mixture, make_moe_program, set_choice
from tiny_programs import MAX_NUM_TOKENS, make_batch, make_native, make_oracle, make_weights

from octavo.formats.gguf_types import GgufType
from octavo.program.forward_batch import ForwardBatch
from octavo.program.moe_ops import Routing
from octavo.program.ops import Program

FLOAT_TOLERANCE = 1e-4
"""Largest difference from the oracle in standard deviations of the logits: another order of float32 sums."""
INT8_TOLERANCE = 0.05
"""The same when activations are quantised: a last bit of difference moves a value by one of 127 steps."""

MIXTURES = {
    "softmax": Mixture(Routing(5, 2, "softmax")),
    "softmax, weights that add up to 1": Mixture(Routing(7, 3, "softmax", renormalize=True)),
    "top-k, then softmax": Mixture(Routing(4, 2, "topk_softmax", scale=0.5)),
    "sigmoid with a bias for the choice": Mixture(
        Routing(9, 4, "sigmoid", renormalize=True, scale=2.5), choice_bias=True
    ),
    "groups by their two best": Mixture(
        Routing(12, 3, "sigmoid", renormalize=True, num_groups=4, top_groups=2), choice_bias=True
    ),
    "groups by their best": Mixture(Routing(6, 2, "softmax", num_groups=3, top_groups=2, group_score="max")),
    "one expert": Mixture(Routing(1, 1, "softmax")),
    "one of many": Mixture(Routing(31, 1, "softmax")),
    "all of them": Mixture(Routing(5, 5, "softmax")),
    "a shared expert": Mixture(shared=True),
    "geglu": Mixture(gate="gelu_tanh"),
    "a sum that stands alone": Mixture(add_to=False),
    "widths that are multiples of nothing": Mixture(hidden=70, ffn=33),
}
WIDE = Mixture(Routing(7, 3, "softmax", renormalize=True), hidden=256, ffn=256, shared=True)
"""Widths that every format can hold."""
FORMATS = [GgufType.F32, GgufType.F16, GgufType.BF16, GgufType.Q4_0, GgufType.Q8_0, GgufType.Q4_K, GgufType.Q6_K]
CHUNKS = [(0, 40), (0, 3), (0, 1)]


def native_logits(native: Any, batch: ForwardBatch) -> np.ndarray:
    native.run(batch)
    return native.logits(np.arange(len(batch.token_ids), dtype=np.int32))


def oracle_logits(program: Program, weights: Any, batch: ForwardBatch, **options: Any) -> np.ndarray:
    oracle = make_oracle(program, weights, **options)
    oracle.run_body(batch)
    return oracle.run_head(np.arange(len(batch.token_ids), dtype=np.int32))


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert np.isfinite(expected).all()
    assert np.abs(actual - expected).max() <= tolerance * expected.std()


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
def test_logits_equal_the_oracles(module: ModuleType, mixture: Mixture) -> None:
    program = make_moe_program(mixture)
    weights = make_weights(program, module)
    batch = make_batch(program, CHUNKS)
    actual = native_logits(make_native(program, weights, module), batch)
    assert_close(actual, oracle_logits(program, weights, batch), FLOAT_TOLERANCE)


@pytest.mark.parametrize("quantize", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_experts_of_every_format_equal_the_oracles(module: ModuleType, kind: GgufType, quantize: bool) -> None:
    program = make_moe_program(WIDE)
    weights = make_weights(program, module, [kind], keep_float=".router")
    batch = make_batch(program, CHUNKS)
    native = make_native(program, weights, module, activation_quantization=quantize)
    expected = oracle_logits(program, weights, batch, activation_quantization=quantize)
    assert_close(native_logits(native, batch), expected, INT8_TOLERANCE if quantize else FLOAT_TOLERANCE)


def test_matrices_of_a_mixture_may_differ_in_format(module: ModuleType) -> None:
    program = make_moe_program(WIDE)
    formats = [GgufType.Q4_K, GgufType.Q6_K, GgufType.Q8_0, GgufType.Q5_0, GgufType.Q4_1]
    weights = make_weights(program, module, formats, keep_float=".router")
    batch = make_batch(program, CHUNKS)
    native = make_native(program, weights, module, activation_quantization=True)
    expected = oracle_logits(program, weights, batch, activation_quantization=True)
    assert_close(native_logits(native, batch), expected, INT8_TOLERANCE)


def test_one_expert_in_floats_makes_all_read_floats(module: ModuleType) -> None:
    program = make_moe_program(WIDE)
    weights = make_weights(program, module, [*[GgufType.Q8_0] * 6, GgufType.F16], keep_float=".router")
    batch = make_batch(program, CHUNKS)
    native = make_native(program, weights, module, activation_quantization=True)
    expected = oracle_logits(program, weights, batch, activation_quantization=True)
    assert_close(native_logits(native, batch), expected, INT8_TOLERANCE)


@pytest.mark.parametrize("kind", [GgufType.F32, GgufType.Q4_K, GgufType.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(module: ModuleType, kind: GgufType, num_threads: int) -> None:
    program = make_moe_program(WIDE)
    weights = make_weights(program, module, [kind], keep_float=".router")
    batch = make_batch(program, [(0, MAX_NUM_TOKENS)])
    two, other = (
        native_logits(make_native(program, weights, module, num_threads=n, activation_quantization=True), batch)
        for n in (2, num_threads)
    )
    assert two.tobytes() == other.tobytes()


SKEWS = {
    "as they come": [0.0] * 7,
    "all to one expert": [0, 0, 9, 0, 0, 0, 0],
    "all to the same three": [9, 0, 0, 8, 0, 0, 9],
    "one expert for nobody": [0, 0, 0, -9, 0, 0, 0],
}


@pytest.mark.parametrize("biases", SKEWS.values(), ids=SKEWS)
@pytest.mark.parametrize("kind", [GgufType.F32, GgufType.Q4_K, GgufType.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("top_k", [1, 3, 7])
def test_any_split_of_67_rows_changes_no_bit(
    module: ModuleType, kind: GgufType, biases: list[float], top_k: int
) -> None:
    mixture = Mixture(Routing(7, top_k, "sigmoid", renormalize=True), hidden=256, ffn=256, choice_bias=True)
    program = make_moe_program(mixture)
    weights = make_weights(program, module, [kind], keep_float=".router")
    set_choice(weights, biases)
    whole, cut = (make_native(program, weights, module, activation_quantization=True) for _ in range(2))
    expected = native_logits(whole, make_batch(program, [(0, 67)]))
    for sizes in ([1] * 67, [2, 5, 9, 51], [16, 16, 16, 16, 3], [33, 34]):
        starts = np.cumsum([0, *sizes[:-1]])
        rows = [native_logits(cut, make_batch(program, [(int(s), n)])) for s, n in zip(starts, sizes, strict=True)]
        assert np.concatenate(rows).tobytes() == expected.tobytes()


def test_company_that_is_not_a_number_changes_no_bit(module: ModuleType) -> None:
    program = make_moe_program(MIXTURES["softmax"])
    weights = make_weights(program, module)
    batch = make_batch(program, [(0, 40)])
    expected = native_logits(make_native(program, weights, module), batch)
    bad = int(batch.token_ids[7])
    table = weights.values["embed"].copy()
    table[bad] = np.nan
    rows = np.ascontiguousarray(table).view(np.uint8)
    weights.matrices["embed"] = (module.PackedMatrix.pack(0, [rows], *table.shape),)
    actual = native_logits(make_native(program, weights, module), batch)
    others = batch.token_ids != bad
    assert not np.isfinite(actual[~others]).any()
    assert actual[others].tobytes() == expected[others].tobytes()


def test_memory_of_a_step_is_for_every_row_and_rank(module: ModuleType) -> None:
    program = make_moe_program(Mixture(Routing(7, 7, "softmax"), hidden=64, ffn=512))
    weights = make_weights(program, module)
    native = make_native(program, weights, module)
    hidden_of_experts = MAX_NUM_TOKENS * 7 * 2 * 512 * 4
    assert hidden_of_experts < native.peak_bytes < 3 * hidden_of_experts


class Load:
    """A native program into which a test loads a mixture of three experts, two for each row, of 32 values."""

    def __init__(self, module: ModuleType, max_num_tokens: int = 8) -> None:
        self.native = module.Program(
            num_threads=1, arena_bytes=1 << 16, max_num_tokens=max_num_tokens, max_num_seqs=8, max_model_len=64
        )
        rows = np.zeros((64, 32), np.float32).view(np.uint8)
        self.matrix = module.PackedMatrix.pack(0, [rows], 64, 32)
        self.place = (0, 32)

    def sort(self, **changes: Any) -> None:
        arguments = {"experts": self.place, "top_k": 2, "num_experts": 3, "x": self.place, "act": None, "width": 32}
        self.native.moe_sort(**{**arguments, "sorted_rows": (4096, 32), **changes})

    def gemm(self, **changes: Any) -> None:
        arguments = {"x": (4096, 32), "act": None, "y": (8192, 64), "experts": [[(self.matrix, 0, None, False)]] * 3}
        self.native.moe_gemm(**{**arguments, **changes})

    def route(self, **changes: Any) -> None:
        self.native.start_rows()
        routing = {"num_experts": 3, "top_k": 2, "scoring": "softmax", "renormalize": False, "scale": 1.0}
        groups = {"num_groups": 1, "top_groups": 1, "group_score": "max"}
        places = {"logits": self.place, "choice_bias": None, "experts": self.place, "weights": self.place}
        self.native.route(**{**routing, **groups, **places, **changes})


BAD_LOADS = {
    "the offset of an operand": lambda load: load.sort(sorted_rows=(1 << 16, 32)),
    "activation blocks must be aligned": lambda load: load.sort(x=None, act=(64, 1), sorted_rows=(4100, 1)),
    "either floats or activation blocks": lambda load: load.sort(act=(0, 1)),
    "top_k must be in": lambda load: load.sort(top_k=4),
    "num_experts must be in": lambda load: load.sort(num_experts=0),
    "moe_sort comes first": lambda load: load.native.moe_gate(
        x=load.place, gate="silu", width=16, y=load.place, act=None
    ),
    "experts run on sorted rows": lambda load: (load.sort(), load.native.start_head(), load.gemm(experts=[])),
    "row ops need start_rows": lambda load: (
        load.sort(),
        load.native.moe_gate(x=load.place, gate="silu", width=16, y=load.place, act=None),
        load.native.scale(x=load.place, factor=2.0, width=32, y=load.place),
    ),
    "the number of experts must be 3, got 2": lambda load: (
        load.sort(),
        load.gemm(experts=[[(load.matrix, 0, None, False)]] * 2),
    ),
    "a product needs a matrix": lambda load: (load.sort(), load.gemm(experts=[[]] * 3)),
    "only quantised weights read": lambda load: (
        load.sort(),
        load.gemm(experts=[[(load.matrix, 0, None, True)]] * 3),
    ),
    "the stride of an operand": lambda load: (load.sort(), load.gemm(y=(8192, 60))),
    "choice_bias|a vector must have 3": lambda load: load.route(choice_bias=np.zeros(2, np.float32)),
    "num_experts must be a multiple": lambda load: load.route(num_groups=2),
    "scoring must be": lambda load: load.route(scoring="relu"),
    "gate must be": lambda load: (
        load.sort(),
        load.native.moe_gate(x=load.place, gate="relu", width=16, y=load.place, act=None),
    ),
}


@pytest.mark.parametrize("message", BAD_LOADS)
def test_mixture_that_points_outside_is_refused_at_load(best_module: ModuleType, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BAD_LOADS[message](Load(best_module))


def test_more_sorted_rows_than_an_int32_counts_are_refused_at_load(best_module: ModuleType) -> None:
    load = Load(best_module, max_num_tokens=1 << 15)
    with pytest.raises(ValueError, match="the sorted rows must be in"):
        load.sort(top_k=1 << 16, num_experts=1 << 16)


def test_mixture_that_fits_is_loaded_and_runs(best_module: ModuleType) -> None:
    load = Load(best_module)
    load.route()
    load.sort()
    load.gemm()
    load.native.finish(logits=load.place, vocab_size=32)
    load.native.set_tables(np.zeros((1, 1), np.int32), [])
    first, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    load.native.run(first, first, one, None, check_signals=False)
    assert load.native.progress > 0
