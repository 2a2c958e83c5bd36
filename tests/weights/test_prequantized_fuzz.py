"""Whatever a quantised checkpoint's config and tensors are, reading them works or raises ModelLoadError."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_checkpoints import (
    AWQ_CONFIG,
    GPTQ_CONFIG,
    Grouped,
    awq_tensors,
    compressed_config,
    gptq_tensors,
    int_quantized_tensors,
    make_grouped,
    pack_quantized_tensors,
)

from octavo.errors import ModelLoadError
from octavo.formats.safetensors import DTYPE_BYTES, SafetensorsTensor
from octavo.weights.checkpoint import checkpoint_from_safetensors
from octavo.weights.prequantized import read_scheme

MODULE = "model.layers.0.mlp.up_proj"
FOUR, EIGHT = make_grouped(8, 64, 32, symmetric=False), make_grouped(8, 64, 32, bits=8, symmetric=False)
SCHEMES: dict[str, tuple[Callable[[str, Grouped], dict[str, SafetensorsTensor]], Grouped, dict[str, Any]]] = {
    "gptq": (gptq_tensors, FOUR, GPTQ_CONFIG),
    "awq": (awq_tensors, FOUR, AWQ_CONFIG),
    "pack-quantized": (
        lambda name, w: pack_quantized_tensors(name, w, symmetric=False, g_idx=True),
        FOUR,
        compressed_config(symmetric=False),
    ),
    "int-quantized": (
        lambda name, w: int_quantized_tensors(name, w, symmetric=False),
        EIGHT,
        compressed_config("int-quantized", num_bits=8, symmetric=False),
    ),
}

TENSORS = {name: make(MODULE, w) for name, (make, w, _) in SCHEMES.items()}

NUMBERS = st.one_of(st.integers(-3, 200), st.sampled_from([2**31 - 1, -(2**31)]))
VALUES = st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=5), st.lists(NUMBERS, max_size=2))


@st.composite
def damaged(draw: st.DrawFn, name: str) -> tuple[dict[str, SafetensorsTensor], object]:
    """Take away, reshape or overwrite tensors, and change a value somewhere in the config."""
    tensors, config = dict(TENSORS[name]), copy.deepcopy(SCHEMES[name][2])
    for key in draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2, unique=True)):
        tensor = tensors.pop(key, None)
        if tensor is not None and draw(st.booleans()):
            dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
            shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
            size = int(np.prod(shape)) * DTYPE_BYTES[dtype]
            fill = draw(st.integers(0, 255))
            tensors[key] = SafetensorsTensor(key, dtype, shape, np.full(size, fill, np.uint8))
        elif tensor is not None:
            data = tensor.data.copy()
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
            tensors[key] = SafetensorsTensor(key, tensor.dtype, tensor.shape, data)
    place: Any = config
    while draw(st.booleans()):
        inner = [value for value in place.values() if isinstance(value, dict)]
        if not inner:
            break
        place = inner[0]
    if draw(st.booleans()) and place:
        place[draw(st.sampled_from(sorted(place)))] = draw(VALUES)
    return tensors, config


@pytest.mark.parametrize("name", SCHEMES)
def test_damaged_checkpoints_only_ever_raise_model_load_errors(name: str) -> None:
    @settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged(name))
    def check(damage: tuple[dict[str, SafetensorsTensor], object]) -> None:
        tensors, config = damage
        with contextlib.suppress(ModelLoadError), np.errstate(all="ignore"):
            scheme = read_scheme({"quantization_config": config}, "config.json")
            checkpoint = checkpoint_from_safetensors(tensors, "model", norm_offset=0.0, scheme=scheme)
            for tensor in checkpoint.tensors.values():
                assert tensor.values().shape == tensor.shape

    check()
