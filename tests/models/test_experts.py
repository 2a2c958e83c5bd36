"""Experts cut out of the stacks that some files keep them in, without copying them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_gguf import write_tiny_gguf
from tiny_models import Model, open_gguf_model, open_tiny

from octavo.errors import ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.formats.gguf_types import GgufType
from octavo.models import glm4_moe
from octavo.models.decoder import build_program
from octavo.models.experts import split_experts
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor

PREFIX = "layers.0.mlp.experts"


def make_stack(*shape: int) -> CheckpointTensor:
    values = np.arange(np.prod(shape), dtype=np.float32)
    return CheckpointTensor(GgufType.F32, shape, values.view(np.uint8))


def split(**tensors: CheckpointTensor) -> dict[str, CheckpointTensor]:
    """Split tensors of the first layer of Granite, which has 5 experts."""
    named = {f"{PREFIX}.{name}": tensor for name, tensor in tensors.items()}
    return dict(split_experts(Checkpoint("model", named), open_tiny("granitemoe").spec).tensors)


def test_fused_stack_is_gate_then_up_of_each_expert() -> None:
    stack = make_stack(5, 6, 4)
    tensors = split(gate_up_proj=stack)
    assert len(tensors) == 10
    for expert, values in enumerate(stack.values()):
        assert np.array_equal(tensors[f"{PREFIX}.{expert}.gate_proj.weight"].values(), values[:3])
        assert np.array_equal(tensors[f"{PREFIX}.{expert}.up_proj.weight"].values(), values[3:])


def test_stack_of_one_matrix_each() -> None:
    stack = make_stack(5, 4, 3)
    tensors = split(down_proj=stack)
    assert [tensors[f"{PREFIX}.{expert}.down_proj.weight"].values().tolist() for expert in range(5)] == [
        values.tolist() for values in stack.values()
    ]


def test_experts_share_the_memory_of_their_stack() -> None:
    stack = make_stack(5, 6, 4)
    assert all(np.shares_memory(part.data, stack.data) for part in split(gate_up_proj=stack).values())


def test_other_tensors_stay_as_they_are() -> None:
    tensor = make_stack(3, 4)
    assert split(elsewhere=tensor) == {f"{PREFIX}.elsewhere": tensor}


@pytest.mark.parametrize("shape", [(4, 6, 4), (5, 24), (6, 6, 4)], ids=["too few", "a matrix", "too many"])
def test_stack_of_other_experts_than_the_configs_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelLoadError, match=r"model: tensor layers.0.mlp.experts.gate_up_proj is .* of 5 experts"):
        split(gate_up_proj=make_stack(*shape))


def test_fused_stack_with_an_odd_number_of_rows_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="7 rows are not those of gate and up"):
        split(gate_up_proj=make_stack(5, 7, 4))


def check(model: Model) -> None:
    program = build_program(model.spec, max_model_len=64, block_size=16, cache_dtype="float16")
    model.checkpoint.check(program)


def test_missing_experts_are_listed() -> None:
    model = open_tiny("qwen3_moe")
    tensors = {name: tensor for name, tensor in model.checkpoint.tensors.items() if ".experts.3." not in name}
    missing = r"6 tensors are missing \(layers.0.mlp.experts.3.gate_proj.weight, .*config does not describe"
    with pytest.raises(ModelLoadError, match=missing):
        check(replace(model, checkpoint=Checkpoint("model", tensors)))


def test_experts_of_another_width_are_named() -> None:
    model = open_tiny("qwen3_moe")
    moe = model.spec.moe
    assert moe is not None
    spec = replace(model.spec, moe=replace(moe, ffn_size=64))
    with pytest.raises(ModelLoadError, match=r"experts.0.gate_proj.weight is \[48, 64\], .* makes it \[64, 64\]"):
        check(replace(model, spec=spec))


def test_experts_of_a_gguf_keep_their_quantised_bits(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    path = write_tiny_gguf(tmp_path / "model.gguf", "mixtral", "llama", matrix_type=kind)
    model = open_gguf_model(open_gguf(path))
    original = open_tiny("mixtral").checkpoint.tensors
    for role in ("gate_proj", "up_proj", "down_proj"):
        name = f"layers.1.mlp.experts.2.{role}.weight"
        tensor = model.checkpoint.tensors[name]
        assert tensor.type is GgufType.Q8_0
        assert tensor.data.tobytes() == gguf.quants.quantize(original[name].values(), kind).tobytes()
    assert model.checkpoint.tensors["layers.1.mlp.gate.weight"].type is GgufType.F32


def test_layer_of_a_draft_model_is_left_out_with_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    model = open_tiny("glm4_moe")
    tensors = {**model.checkpoint.tensors, "layers.3.enorm.weight": make_stack(64)}
    adapted = glm4_moe.adapt_hf(Checkpoint("model", tensors), model.spec)
    assert adapted.tensors == model.checkpoint.tensors
    assert "model: the draft model in layers from 3 on is not used" in caplog.text
