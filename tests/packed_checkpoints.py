"""Quantised safetensors checkpoints, packed as each tool does it, one code after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.formats.safetensors import SafetensorsTensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column that each nibble of a word holds."""

Array = npt.NDArray[Any]


@dataclass
class Grouped:
    """Random codes [N, K], zero points and scales [N, G]; `groups` [K] is the group of each column."""

    codes: Array
    zero_points: Array
    scales: Array
    groups: Array

    def values(self) -> npt.NDArray[np.float32]:
        """Return scale * (code - zero point), one after the other."""
        out = np.empty(self.codes.shape, np.float32)
        for n, k in np.ndindex(*out.shape):
            g = self.groups[k]
            out[n, k] = self.scales[n, g] * np.float32(int(self.codes[n, k]) - int(self.zero_points[n, g]))
        return out


def make_grouped(
    rows: int,
    columns: int,
    group_size: int,
    *,
    bits: int = 4,
    symmetric: bool = True,
    scale_type: str = "float16",
    seed: int = 0,
) -> Grouped:
    rng = np.random.default_rng([rows, columns, group_size, bits, seed])
    num_groups = -(-columns // group_size)
    middle = 1 << (bits - 1)
    zero_points = np.full((rows, num_groups), middle)
    if not symmetric:
        zero_points = rng.integers(0, 2 * middle, (rows, num_groups))
    scales = rng.uniform(0.5, 2, (rows, num_groups)).astype(np.float32) / 100
    if scale_type == "float16":
        scales = scales.astype(np.float16).astype(np.float32)
    elif scale_type == "bfloat16":
        scales = (scales.view(np.uint32) & 0xFFFF0000).view(np.float32)
    codes = rng.integers(0, 2 * middle, (rows, columns))
    return Grouped(codes, zero_points, scales, np.arange(columns) // group_size)


def make_tensor(name: str, values: Array, dtype: str) -> SafetensorsTensor:
    if dtype == "BF16":
        data = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2")
    else:
        data = np.ascontiguousarray(values, {"F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8", "I8": "i1"}[dtype])
    return SafetensorsTensor(name, dtype, values.shape, data.reshape(-1).view(np.uint8))


def pack_along(codes: Array, axis: int, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """Return codes in words of 32 bits along an axis; place i of a word holds code order[i] of its run."""
    codes = np.moveaxis(codes, axis, -1)
    per_word = 32 // bits
    num_words = -(-codes.shape[-1] // per_word)
    words = np.zeros((*codes.shape[:-1], num_words), np.int64)
    for index in np.ndindex(*words.shape):
        for place in range(per_word):
            k = per_word * index[-1] + (place if order is None else order[place])
            if k < codes.shape[-1]:
                words[index] |= int(codes[(*index[:-1], k)]) << (bits * place)
    return np.moveaxis(words, -1, axis).astype(np.uint32).view(np.int32)


def as_dict(*tensors: SafetensorsTensor) -> dict[str, SafetensorsTensor]:
    return {tensor.name: tensor for tensor in tensors}


def gptq_tensors(
    name: str, w: Grouped, *, bits: int = 4, v2: bool = False, scale_dtype: str = "F16", g_idx: bool = True
) -> dict[str, SafetensorsTensor]:
    stored = w.zero_points if v2 else (w.zero_points - 1) % (1 << bits)
    tensors = as_dict(
        make_tensor(f"{name}.qweight", pack_along(w.codes.T, 0, bits), "I32"),
        make_tensor(f"{name}.qzeros", pack_along(stored.T, 1, bits), "I32"),
        make_tensor(f"{name}.scales", w.scales.T, scale_dtype),
    )
    return tensors | (as_dict(make_tensor(f"{name}.g_idx", w.groups, "I32")) if g_idx else {})


def awq_tensors(name: str, w: Grouped) -> dict[str, SafetensorsTensor]:
    return as_dict(
        make_tensor(f"{name}.qweight", pack_along(w.codes.T, 1, 4, AWQ_ORDER), "I32"),
        make_tensor(f"{name}.qzeros", pack_along(w.zero_points.T, 1, 4, AWQ_ORDER), "I32"),
        make_tensor(f"{name}.scales", w.scales.T, "F16"),
    )


def pack_quantized_tensors(
    name: str, w: Grouped, *, bits: int = 4, symmetric: bool = True, scale_dtype: str = "BF16", g_idx: bool = False
) -> dict[str, SafetensorsTensor]:
    tensors = as_dict(
        make_tensor(f"{name}.weight_packed", pack_along(w.codes, 1, bits), "I32"),
        make_tensor(f"{name}.weight_scale", w.scales, scale_dtype),
        make_tensor(f"{name}.weight_shape", np.array(w.codes.shape), "I64"),
    )
    if not symmetric:
        tensors |= as_dict(make_tensor(f"{name}.weight_zero_point", pack_along(w.zero_points, 0, bits), "I32"))
    if g_idx:
        tensors |= as_dict(make_tensor(f"{name}.weight_g_idx", w.groups, "I32"))
    return tensors


def int_quantized_tensors(name: str, w: Grouped, *, symmetric: bool = True) -> dict[str, SafetensorsTensor]:
    tensors = as_dict(
        make_tensor(f"{name}.weight", w.codes - 128, "I8"),
        make_tensor(f"{name}.weight_scale", w.scales, "BF16"),
    )
    if not symmetric:
        tensors |= as_dict(make_tensor(f"{name}.weight_zero_point", w.zero_points - 128, "I8"))
    return tensors


GPTQ_CONFIG: dict[str, object] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ_CONFIG: dict[str, object] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "gemm",
}


def compressed_config(form: str = "pack-quantized", **weights: object) -> dict[str, Any]:
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, **weights}
    group = {"targets": ["Linear"], "weights": scheme, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }
