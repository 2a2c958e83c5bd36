"""Weights that are made from codes of another kind while a model loads: how many are in memory, and for how long."""

from __future__ import annotations

import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from tiny_models import open_tiny

from octavo.frontend.model_weights import load_model_weights
from octavo.models.decoder import build_program
from octavo.weights.checkpoint import Checkpoint, CheckpointTensor


class LiveArrays:
    """Makes the bytes of tensors on demand, and counts those that somebody still has."""

    def __init__(self) -> None:
        self.count = self.most = 0

    def made_on_demand(self, tensor: CheckpointTensor) -> CheckpointTensor:
        stored = tensor.data

        def make() -> npt.NDArray[np.uint8]:
            made = stored.copy()
            self.count += 1
            self.most = max(self.most, self.count)
            weakref.finalize(made, self._forget)
            return made

        return replace(tensor, source=make)

    def _forget(self) -> None:
        self.count -= 1


@pytest.mark.parametrize("num_threads", [1, 2])
def test_only_the_parts_of_one_matrix_are_in_memory_while_it_is_packed(num_threads: int) -> None:
    tiny = open_tiny("llama")
    program = build_program(tiny.spec, max_model_len=64, block_size=16, cache_dtype="float16")
    live = LiveArrays()
    tensors = {
        name: live.made_on_demand(tensor) if len(tensor.shape) == 2 else tensor
        for name, tensor in tiny.checkpoint.tensors.items()
    }
    model = SimpleNamespace(checkpoint=Checkpoint("tiny", tensors))
    config = cast(Any, SimpleNamespace(quantization=None))
    resolved = cast(Any, SimpleNamespace(model=model, num_threads=num_threads))
    weights, packing = load_model_weights(config, resolved, program)
    assert (live.most, live.count) == (3, 0)  # q, k and v
    packing.wait()
    plain, packing = load_model_weights(config, cast(Any, SimpleNamespace(model=tiny, num_threads=1)), program)
    packing.wait()
    for name, segments in plain.matrices.items():
        for segment, other in zip(segments, weights.matrices[name], strict=True):
            assert np.array_equal(segment.data, other.data)
