from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hybrid_programs import make_hybrid
from moe_programs import Mixture, make_moe_program
from tiny_programs import Shape, make_program, make_weight

from octavo.cache_spec import AttentionGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.instructions import Instruction, LoweredProgram
from octavo.program.lowering import lower
from octavo.program.ops import Program

FLOAT32, Q4_0 = 0, 3


@dataclass(frozen=True)
class FakeMatrix:
    N: int
    format: int

    @property
    def is_quantized(self) -> bool:
        return self.format == Q4_0


class FakeWeights:
    def __init__(self, program: Program, formats: dict[str, int], default: int) -> None:
        self.vectors = {w.name: np.zeros(w.shape, np.float32) for w in program.weights if not w.is_matrix}
        self.matrices = {
            w.name: tuple(FakeMatrix(part.num_rows, formats.get(part.name, default)) for part in w.parts)
            for w in program.weights
            if w.is_matrix
        }


def make_lowered(
    program: Program, formats: dict[str, int] | None = None, default: int = Q4_0, quantize: bool = True
) -> LoweredProgram:
    return lower(program, FakeWeights(program, formats or {}, default), activation_quantization=quantize)


def methods(instructions: list[Instruction]) -> list[str]:
    return [instruction.method for instruction in instructions]


def only(lowered: LoweredProgram, method: str) -> list[Instruction]:
    return [instruction for instruction in lowered.body if instruction.method == method]


def test_a_quantised_layer_is_four_products_and_row_stages_between() -> None:
    lowered = make_lowered(make_program(Shape(layers=1)))
    assert methods(lowered.body) == [
        *("start_rows", "embedding", "rms_norm", "gemm", "start_rows", "rope", "rope", "kv_write", "attention"),
        *("start_rows", "quantize", "gemm", "start_rows", "rms_norm", "gated_gemm", "gemm"),
    ]
    assert methods(lowered.head) == ["start_rows", "gather_rows", "rms_norm", "gemm"]


def test_a_norm_that_feeds_int8_products_only_stores_no_floats() -> None:
    for norm in only(make_lowered(make_program()), "rms_norm"):
        assert norm.arguments["y"] is None
        assert norm.arguments["act"] is not None


def test_without_activation_quantization_no_product_reads_int8() -> None:
    lowered = make_lowered(make_program(), quantize=False)
    assert "quantize" not in methods(lowered.body)
    for gemm in only(lowered, "gemm"):
        assert gemm.arguments["act"] is None
        assert not any(segment[3] for segment in gemm.arguments["segments"])


def test_a_norm_is_stored_both_ways_for_parts_of_different_formats() -> None:
    lowered = make_lowered(make_program(Shape(layers=1)), {"layers.0.qkv.2": FLOAT32})
    norm = only(lowered, "rms_norm")[0]
    gemm = only(lowered, "gemm")[0]
    assert norm.arguments["y"] == gemm.arguments["x"]
    assert norm.arguments["act"] == gemm.arguments["act"]
    assert [segment[3] for segment in gemm.arguments["segments"]] == [True, True, False]


def test_the_residual_is_summed_where_it_lies() -> None:
    lowered = make_lowered(make_program(Shape(layers=1)))
    embedding = only(lowered, "embedding")[0]
    sums = [gemm for gemm in only(lowered, "gemm") if gemm.arguments["add"]]
    assert len(sums) == 2
    assert all(gemm.arguments["y"] == embedding.arguments["y"] for gemm in sums)


def test_parts_of_a_split_product_are_columns_of_its_output() -> None:
    shape = Shape(layers=1)
    lowered = make_lowered(make_program(shape))
    q, k = (rope.arguments["x"] for rope in only(lowered, "rope"))
    write = only(lowered, "kv_write")[0].arguments
    assert q == only(lowered, "gemm")[0].arguments["y"]
    assert (write["k"], q.buffer) == (k, write["v"].buffer)
    assert (k.column, write["v"].column) == (64, 96)


def test_a_bias_is_cut_at_the_segments() -> None:
    lowered = make_lowered(make_program(Shape(layers=1)))
    segments = only(lowered, "gemm")[0].arguments["segments"]
    assert [(segment[1], len(segment[2])) for segment in segments] == [(0, 64), (64, 32), (96, 32)]


def make_builder() -> ProgramBuilder:
    return ProgramBuilder([AttentionGroupSpec("full", 1, 2, 16, "float32", 16)], max_model_len=32)


def lower_mlp(ffn: int = 64, parts: tuple[int, ...] = (), read_again: bool = False) -> LoweredProgram:
    b = make_builder()
    gate_up = b.linear(b.embedding(make_weight("embed", 10, 64)), make_weight("gate_up", 2 * ffn, 64, parts=parts))
    if read_again:
        b.scale(gate_up, 2.0)
    return make_lowered(b.finish(b.gather_rows(b.linear(b.swiglu(gate_up), make_weight("down", 64, ffn)))))


def test_a_gate_is_made_in_its_product_wherever_its_halves_begin() -> None:
    for parts, panels in (((64, 64), [0, 0]), ((), [0, 4])):
        gated = only(lower_mlp(parts=parts), "gated_gemm")[0].arguments
        assert [gated["gate_part"][1], gated["up_part"][1]] == panels
        assert (gated["width"], gated["y"]) == (64, None)


def test_a_gate_whose_product_is_read_by_others_is_made_after_it() -> None:
    assert "gated_gemm" not in methods(lower_mlp(read_again=True).body)


def test_halves_that_do_not_begin_at_a_panel_are_gated_after_their_product() -> None:
    assert "gated_gemm" not in methods(lower_mlp(ffn=72).body)
    assert "gated_gemm" in methods(lower_mlp(ffn=72, parts=(72, 72)).body)


def test_a_value_that_is_needed_again_is_copied_before_it_is_summed_into() -> None:
    b = make_builder()
    x = b.embedding(make_weight("embed", 10, 64))
    y = b.linear(x, make_weight("a", 64, 64), add_to=x)
    lowered = make_lowered(b.finish(b.gather_rows(b.add(x, y))))
    copy = only(lowered, "copy")[0].arguments
    assert copy["x"] == only(lowered, "embedding")[0].arguments["y"]
    assert copy["y"] == only(lowered, "gemm")[0].arguments["y"]


def test_activations_that_two_products_share_are_quantised_once() -> None:
    b = make_builder()
    x = b.embedding(make_weight("embed", 10, 64))
    y = b.add(b.linear(x, make_weight("a", 64, 64)), b.linear(x, make_weight("b", 64, 64)))
    lowered = make_lowered(b.finish(b.gather_rows(y)))
    assert methods(lowered.body).count("quantize") == 1


def test_the_hidden_rows_outlive_the_head() -> None:
    program = make_program()
    lowered = make_lowered(program)
    gather = lowered.head[1].arguments["x"]
    assert lowered.buffers[gather.buffer].last == max(buffer.last for buffer in lowered.buffers)


def test_a_mixture_is_a_sort_and_products_of_sorted_rows_and_a_sum() -> None:
    lowered = make_lowered(make_moe_program(Mixture(hidden=64)), {"layers.0.router": FLOAT32})
    layer = [
        *("gemm", "start_rows", "route", "moe_sort", "moe_gemm", "moe_gate", "moe_gemm", "start_rows", "moe_combine")
    ]
    assert methods(lowered.body) == ["start_rows", "embedding", "rms_norm", *layer, "rms_norm", *layer]


@pytest.mark.parametrize("router", [FLOAT32, Q4_0], ids=["floats", "quantised"])
def test_a_router_reads_floats_whatever_its_format(router: int) -> None:
    lowered = make_lowered(make_moe_program(), {"layers.0.router": router})
    (segment,) = only(lowered, "gemm")[0].arguments["segments"]
    assert not segment[3]
    assert only(lowered, "gemm")[0].arguments["x"] == only(lowered, "rms_norm")[0].arguments["y"]


def test_experts_read_int8_if_all_of_them_can() -> None:
    lowered = make_lowered(make_moe_program(), {"layers.1.3.gate_up.1": FLOAT32})
    segments = [gemm.arguments["experts"][0][0][3] for gemm in only(lowered, "moe_gemm")]
    assert segments == [True, True, False, True]


def test_sorted_rows_have_memory_for_each_rank() -> None:
    lowered = make_lowered(make_moe_program())
    sort, gemm = only(lowered, "moe_sort")[0].arguments, only(lowered, "moe_gemm")[0].arguments
    assert [lowered.buffers[place.buffer].per_row for place in (sort["sorted_rows"], gemm["y"])] == [2, 2]
    assert lowered.buffers[sort["experts"].buffer].per_row == 1


def test_the_sum_of_a_mixture_is_made_where_the_residual_lies() -> None:
    lowered = make_lowered(make_moe_program())
    place = only(lowered, "embedding")[0].arguments["y"]
    assert all(op.arguments["y"] == op.arguments["add"] == place for op in only(lowered, "moe_combine"))


def test_a_product_with_a_single_gate_is_not_made_where_the_gate_lies() -> None:
    b = make_builder()
    x = b.embedding(make_weight("embed", 10, 64))
    gate = b.linear(x, make_weight("a", 1, 64))
    lowered = make_lowered(b.finish(b.gather_rows(b.add(b.mul_by_gate(x, gate, "sigmoid"), x))))
    op = only(lowered, "mul_by_gate")[0].arguments
    assert op["y"] not in (op["x"], op["g"])


@pytest.mark.parametrize("quantize", [True, False])
def test_a_deeper_program_needs_no_more_memory(quantize: bool) -> None:
    def in_use(layers: int) -> int:
        buffers = make_lowered(make_program(Shape(layers=layers)), quantize=quantize).buffers
        stages = range(max(buffer.last for buffer in buffers) + 1)
        return max(
            sum(b.stride * b.element_bytes for b in buffers if b.rows == "T" and b.first <= stage <= b.last)
            for stage in stages
        )

    assert in_use(12) == in_use(2)


def test_a_quantised_recurrent_layer_has_two_stages_of_its_own_and_quantises_at_its_gate() -> None:
    names = methods(make_lowered(make_hybrid()).body)
    assert names[: names.index("attention")] == [
        *("start_rows", "embedding", "rms_norm", "gemm", "causal_conv", "gated_delta"),
        *("start_rows", "rms_norm", "mul_by_gate", "gemm", "start_rows", "quantize", "gemm", "start_rows", "kv_write"),
    ]
    for gate in only(make_lowered(make_hybrid()), "mul_by_gate"):
        assert gate.arguments["y"] is None
        assert gate.arguments["act"] is not None
