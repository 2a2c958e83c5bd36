from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from tiny_programs import Shape, make_program, make_weight

from octavo.cache_spec import AttentionGroupSpec
from octavo.program.builder import ProgramBuilder
from octavo.program.lowering import Instruction, LoweredProgram, lower
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


def test_a_quantised_layer_is_five_products_and_row_stages_between() -> None:
    lowered = make_lowered(make_program(Shape(layers=1)))
    assert methods(lowered.body) == [
        *("start_rows", "embedding", "rms_norm", "gemm", "start_rows", "rope", "rope", "kv_write", "attention"),
        *("start_rows", "quantize", "gemm", "start_rows", "rms_norm", "gemm", "start_rows", "gated_mul", "gemm"),
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
