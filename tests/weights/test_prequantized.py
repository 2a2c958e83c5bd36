"""Quantised safetensors checkpoints: every weight is what its format defines, in a code that holds it exactly."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from packed_checkpoints import (
    AWQ_CONFIG,
    GPTQ_CONFIG,
    Grouped,
    awq_tensors,
    compressed_config,
    gptq_tensors,
    int_quantized_tensors,
    make_grouped,
    make_tensor,
    pack_quantized_tensors,
)

from octavo.errors import ModelLoadError
from octavo.formats.gguf_types import GgufType
from octavo.formats.safetensors import SafetensorsTensor
from octavo.native import kernels
from octavo.weights.checkpoint import CheckpointTensor, checkpoint_from_safetensors
from octavo.weights.packing import NATIVE_FORMATS
from octavo.weights.prequantized import read_scheme

MODULE = "model.layers.0.mlp.down_proj"
STABLE = "layers.0.mlp.down_proj.weight"

Tensors = Mapping[str, SafetensorsTensor]


def read(tensors: Tensors, quantization: Mapping[str, object]) -> dict[str, CheckpointTensor]:
    scheme = read_scheme({"quantization_config": quantization}, "config.json")
    return dict(checkpoint_from_safetensors(tensors, "model", norm_offset=0.0, scheme=scheme).tensors)


def gptq(w: Grouped, **options: Any) -> tuple[Tensors, Mapping[str, object], Grouped]:
    return gptq_tensors(MODULE, w, **options), GPTQ_CONFIG, w


SYMMETRIC, ASYMMETRIC = make_grouped(24, 96, 32), make_grouped(24, 96, 32, symmetric=False)
WIDE = make_grouped(16, 256, 128, symmetric=False)
WHOLE_ROWS = make_grouped(16, 96, 96)
EIGHT, EIGHT_ASYMMETRIC = make_grouped(16, 96, 32, bits=8), make_grouped(16, 96, 32, bits=8, symmetric=False)
CHANNEL = make_grouped(16, 96, 96, bits=8, scale_type="bfloat16")
BF16, BF16_ASYMMETRIC = (make_grouped(24, 96, 32, symmetric=s, scale_type="bfloat16") for s in (True, False))
ODD_GROUPS = make_grouped(16, 96, 24)
LAST_GROUP_SHORT = make_grouped(16, 96, 64, symmetric=False)

CASES = {
    "gptq": (GgufType.Q4_0, *gptq(SYMMETRIC)),
    "gptq-zeros": (GgufType.Q4_Z, *gptq(ASYMMETRIC)),
    "gptq-groups-of-128": (GgufType.Q4_Z, *gptq(WIDE), {"group_size": 128}),
    "gptq-short-last-group": (GgufType.Q4_Z, *gptq(LAST_GROUP_SHORT), {"group_size": 64}),
    "gptq-whole-rows": (GgufType.Q4_0, *gptq(WHOLE_ROWS), {"group_size": -1}),
    "gptq-without-g-idx": (GgufType.Q4_0, *gptq(SYMMETRIC, g_idx=False)),
    "gptq-v2": (GgufType.Q4_Z, *gptq(ASYMMETRIC, v2=True), {"checkpoint_format": "gptq_v2"}),
    "gptq-bf16-scales": (GgufType.Q4_Z, *gptq(BF16_ASYMMETRIC, scale_dtype="BF16")),
    "gptq-8": (GgufType.Q8_0, *gptq(EIGHT, bits=8), {"bits": 8}),
    "gptq-8-zeros": (GgufType.F32, *gptq(EIGHT_ASYMMETRIC, bits=8), {"bits": 8}),
    "gptq-odd-groups": (GgufType.F32, *gptq(ODD_GROUPS), {"group_size": 24}),
    "awq": (GgufType.Q4_Z, awq_tensors(MODULE, ASYMMETRIC), AWQ_CONFIG, ASYMMETRIC),
    "awq-groups-of-128": (GgufType.Q4_Z, awq_tensors(MODULE, WIDE), AWQ_CONFIG, WIDE, {"group_size": 128}),
    "awq-symmetric": (GgufType.Q4_0, awq_tensors(MODULE, SYMMETRIC), AWQ_CONFIG, SYMMETRIC),
    "pack-quantized": (GgufType.Q4_0, pack_quantized_tensors(MODULE, BF16), compressed_config(), BF16),
    "pack-quantized-zeros": (
        GgufType.Q4_Z,
        pack_quantized_tensors(MODULE, BF16_ASYMMETRIC, symmetric=False),
        compressed_config(symmetric=False),
        BF16_ASYMMETRIC,
    ),
    "pack-quantized-8": (
        GgufType.Q8_0,
        pack_quantized_tensors(MODULE, CHANNEL, bits=8),
        compressed_config(num_bits=8, strategy="channel"),
        CHANNEL,
    ),
    "pack-quantized-f32-scales": (
        GgufType.Q4_0,
        pack_quantized_tensors(MODULE, SYMMETRIC, scale_dtype="F32"),
        compressed_config(),
        SYMMETRIC,
    ),
    "int-quantized": (
        GgufType.Q8_0,
        int_quantized_tensors(MODULE, CHANNEL),
        compressed_config("int-quantized", num_bits=8, strategy="channel"),
        CHANNEL,
    ),
    "int-quantized-zeros": (
        GgufType.F32,
        int_quantized_tensors(
            MODULE, make_grouped(16, 96, 32, bits=8, symmetric=False, scale_type="bfloat16"), symmetric=False
        ),
        compressed_config("int-quantized", num_bits=8),
        make_grouped(16, 96, 32, bits=8, symmetric=False, scale_type="bfloat16"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_what_the_format_defines(case: str) -> None:
    kind, tensors, config, w, *changes = CASES[case]
    (tensor,) = read(tensors, {**config, **(changes[0] if changes else {})}).values()
    assert tensor.type is kind
    assert np.array_equal(tensor.values(), w.values())


@pytest.mark.parametrize("case", CASES)
def test_packed_matrices_hold_the_same_values(case: str) -> None:
    kind, tensors, config, w, *changes = CASES[case]
    tensor = read(tensors, {**config, **(changes[0] if changes else {})})[STABLE]
    rows, columns = tensor.shape
    matrix = kernels().PackedMatrix.pack(NATIVE_FORMATS[kind], [tensor.data], rows, columns)
    assert np.array_equal(matrix.dequantize_rows(np.arange(rows, dtype=np.int32)), w.values())


def shuffled(w: Grouped) -> Grouped:
    return Grouped(w.codes, w.zero_points, w.scales, np.random.default_rng(1).permutation(w.groups))


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (gptq_tensors, {**GPTQ_CONFIG, "desc_act": True}),
        (lambda name, w: pack_quantized_tensors(name, w, g_idx=True, scale_dtype="F16"), compressed_config()),
    ],
    ids=["gptq", "pack-quantized"],
)
def test_columns_in_the_order_of_their_importance_become_floats(
    make: Callable[[str, Grouped], Tensors], config: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    w = shuffled(SYMMETRIC)
    with caplog.at_level(logging.WARNING, "octavo"):
        tensor = read(make(MODULE, w), config)[STABLE]
    assert tensor.type is GgufType.F32
    assert np.array_equal(tensor.values(), w.values())
    assert "1 of 1 quantised matrices become float32" in caplog.text


@pytest.mark.parametrize("scale", [2.0**-22 * 1.0078125, 1e6, float("nan")], ids=str)
def test_a_scale_that_float16_cannot_hold_makes_floats(scale: float) -> None:
    w = make_grouped(24, 96, 32, scale_type="bfloat16")
    w.scales[3, 1] = scale
    tensor = read(pack_quantized_tensors(MODULE, w, scale_dtype="F32"), compressed_config())[STABLE]
    assert tensor.type is GgufType.F32
    assert np.array_equal(tensor.values(), w.values(), equal_nan=True)


def test_modules_that_are_not_quantised_stay_floats() -> None:
    head = make_tensor("lm_head.weight", np.ones((8, 32)), "BF16")
    tensors = read({**gptq_tensors(MODULE, SYMMETRIC), head.name: head}, GPTQ_CONFIG)
    assert {name: tensor.type for name, tensor in tensors.items()} == {
        STABLE: GgufType.Q4_0,
        "lm_head.weight": GgufType.BF16,
    }


@pytest.mark.parametrize(("value", "kept"), [(0.0, False), (0.5, True)])
def test_biases_that_are_all_zeros_are_left_out(value: float, kept: bool) -> None:
    bias = make_tensor(f"{MODULE}.bias", np.array([0.0] * 23 + [value]), "F16")
    tensors = read({**gptq_tensors(MODULE, SYMMETRIC), bias.name: bias}, GPTQ_CONFIG)
    assert ("layers.0.mlp.down_proj.bias" in tensors) is kept


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({"quant_method": "fp8"}, "quantised with fp8", id="fp8"),
        pytest.param({"quant_method": "bitsandbytes", "load_in_4bit": True}, "with bitsandbytes", id="bitsandbytes"),
        pytest.param({"quant_method": "mxfp4"}, "with mxfp4", id="mxfp4"),
        pytest.param({"quant_algo": "NVFP4"}, "with nvfp4", id="nvfp4"),
        pytest.param({}, "with an unnamed method", id="unnamed"),
        pytest.param([], "is a list", id="list"),
        pytest.param({**GPTQ_CONFIG, "bits": 3}, "bits is 3", id="gptq-3-bits"),
        pytest.param({**GPTQ_CONFIG, "group_size": 0}, "group_size is 0", id="gptq-group-size"),
        pytest.param({**GPTQ_CONFIG, "checkpoint_format": "marlin"}, "'marlin' is not supported", id="marlin"),
        pytest.param({**GPTQ_CONFIG, "dynamic": {"x": {"bits": 8}}}, "dynamic is", id="gptq-dynamic"),
        pytest.param({**AWQ_CONFIG, "version": "GEMV"}, "'gemv' is not supported", id="awq-gemv"),
        pytest.param({**AWQ_CONFIG, "bits": 8}, "bits is 8", id="awq-8-bits"),
        pytest.param(compressed_config("float-quantized"), "'float-quantized'", id="compressed-fp8"),
        pytest.param(compressed_config("nvfp4-pack-quantized"), "'nvfp4-pack-quantized'", id="compressed-nvfp4"),
        pytest.param(compressed_config(num_bits=2), "num_bits is 2", id="compressed-2-bits"),
        pytest.param(compressed_config(type="float"), "type is 'float'", id="compressed-float"),
        pytest.param(compressed_config(strategy="block"), "strategy is 'block'", id="compressed-blocks"),
        pytest.param({**compressed_config(), "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme", id="kv-cache"),
        pytest.param(
            {**compressed_config(), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse weights", id="sparse"
        ),
        pytest.param({**compressed_config(), "config_groups": None}, "config_groups is a NoneType", id="no-groups"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config: object, message: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"config\.json: quantization_config.*{message}.*supported: AWQ"):
        read_scheme({"quantization_config": config}, "config.json")


def test_quantised_activations_are_refused() -> None:
    config = compressed_config("int-quantized", num_bits=8)
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": True}
    with pytest.raises(ModelLoadError, match="group_0 input_activations asks for quantised activations"):
        read_scheme({"text_config": {"quantization_config": config}}, "config.json")


@pytest.mark.parametrize(
    ("part", "replacement", "message"),
    [
        ("qzeros", None, "qzeros is missing, though the module is quantised"),
        ("scales", make_tensor("", np.ones((2, 24)), "F16"), r"scales is \[2, 24\], the others make it \[3, 24\]"),
        ("scales", make_tensor("", np.ones((3, 24)), "I32"), "scales is I32, expected one of F32"),
        ("qzeros", make_tensor("", np.ones((3, 24)), "I32"), r"qzeros is \[3, 24\]"),
        ("qzeros", make_tensor("", np.ones((3, 3)), "F16"), "qzeros is F16, expected I32"),
        ("qweight", make_tensor("", np.ones((12, 3, 8)), "I32"), "expected 2 dimensions"),
        ("g_idx", make_tensor("", np.ones(95), "I32"), r"g_idx is \[95\], the others make it \[96\]"),
        ("g_idx", make_tensor("", np.full(96, 3), "I32"), "groups from 3 to 3, but there are 3"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit_are_named(part: str, replacement: SafetensorsTensor | None, message: str) -> None:
    tensors = gptq_tensors(MODULE, SYMMETRIC)
    name = f"{MODULE}.{part}"
    del tensors[name]
    if replacement is not None:
        tensors[name] = SafetensorsTensor(name, replacement.dtype, replacement.shape, replacement.data)
    with pytest.raises(ModelLoadError, match=message):
        read(tensors, GPTQ_CONFIG)


def test_integers_of_more_than_a_byte_are_no_weights() -> None:
    tensors = int_quantized_tensors(MODULE, CHANNEL)
    wide = make_tensor(f"{MODULE}.weight", CHANNEL.codes - 128, "I32")
    with pytest.raises(ModelLoadError, match=r"weight is I32, expected I8"):
        read({**tensors, wide.name: wide}, compressed_config("int-quantized", num_bits=8))


def test_reading_bytes_takes_no_memory_of_their_number() -> None:
    w = make_grouped(512, 1024, 1024, bits=8, scale_type="bfloat16")
    tensors = int_quantized_tensors(MODULE, w)
    tracemalloc.start()
    tensor = read(tensors, compressed_config("int-quantized", num_bits=8, strategy="channel"))[STABLE]
    _, opened = tracemalloc.get_traced_memory()
    data = tensor.data
    _, decoded = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert opened < w.codes.size / 8
    assert decoded < 4 * data.nbytes


@pytest.mark.parametrize("kind", [GgufType.Q4_0, GgufType.Q4_Z, GgufType.Q8_0], ids=lambda kind: kind.name)
def test_products_equal_those_of_the_dequantised_floats(kind: GgufType, native: ModuleType) -> None:
    _, tensors, config, w, *changes = next(case for case in CASES.values() if case[0] is kind)
    tensor = read(tensors, {**config, **(changes[0] if changes else {})})[STABLE]
    rows, columns = tensor.shape
    x = np.random.default_rng(0).standard_normal((5, columns), dtype=np.float32)
    results = []
    for code, data in ((kind, tensor.data), (GgufType.F32, w.values().reshape(-1).view(np.uint8))):
        matrix = native.PackedMatrix.pack(NATIVE_FORMATS[code], [data], rows, columns)
        y = np.empty((5, rows), np.float32)
        native.gemm_f32(matrix, x, y)
        results.append(y)
    assert np.array_equal(*results)


@pytest.fixture
def native() -> ModuleType:
    return kernels()
