"""A checkpoint that was quantised before gives the logits of its own dequantised floats, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import make_safetensors
from packed_checkpoints import (
    AWQ_CONFIG,
    GPTQ_CONFIG,
    Grouped,
    awq_tensors,
    compressed_config,
    gptq_tensors,
    int_quantized_tensors,
    make_tensor,
    pack_quantized_tensors,
)
from tiny_models import TINY_DIR, as_floats

from octavo import LLM, SamplingParams
from octavo.errors import ModelLoadError
from octavo.formats.safetensors import SafetensorsTensor, open_safetensors_dir

GROUP = 32
FLOAT_PATH = {"activation_quantization": False, "kv_cache_dtype": "float32"}
PROMPT = [5, 17, 900, 33, 1200, 4, 77]

Tensors = dict[str, SafetensorsTensor]


def quantize(values: np.ndarray, bits: int, symmetric: bool) -> Grouped:
    """Round a matrix; the scales are bfloat16 numbers that float16 has too."""
    groups = values.reshape(len(values), -1, GROUP)
    most = (1 << bits) - 1
    low, high = groups.min(axis=2), groups.max(axis=2)
    span = 2 * np.abs(groups).max(axis=2) if symmetric else np.maximum(high, 0) - np.minimum(low, 0)
    scales = ((span / most).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    middle = np.full(scales.shape, 1 << (bits - 1))
    zero_points = middle if symmetric else np.clip(np.rint(-np.minimum(low, 0) / scales), 0, most).astype(np.int64)
    codes = np.clip(np.rint(groups / scales[:, :, None]) + zero_points[:, :, None], 0, most).astype(np.int64)
    return Grouped(codes.reshape(values.shape), zero_points, scales, np.arange(values.shape[1]) // GROUP)


def write_model(directory: Path, tensors: Iterable[SafetensorsTensor], quantization: dict[str, Any] | None) -> Path:
    shutil.copytree(TINY_DIR / "llama", directory)
    header, body = {}, b""
    for tensor in tensors:
        begin, body = len(body), body + tensor.data.tobytes()
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, len(body)],
        }
    (directory / "model.safetensors").write_bytes(make_safetensors(header, body))
    config = json.loads((directory / "config.json").read_text())
    if quantization is not None:
        config["quantization_config"] = quantization
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def logits(model: Path) -> list[dict[int, float]]:
    with LLM(model, max_logprobs=-1, logprobs_mode="raw_logits", **FLOAT_PATH) as llm:
        params = SamplingParams(temperature=0, max_tokens=2, logprobs=-1)
        (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    return [{token: entry.logprob for token, entry in step.items()} for step in output.outputs[0].logprobs]


SCHEMES: dict[str, tuple[int, bool, Callable[[str, Grouped], Tensors], dict[str, Any]]] = {
    "gptq": (4, True, gptq_tensors, GPTQ_CONFIG),
    "gptq-zeros": (4, False, gptq_tensors, {**GPTQ_CONFIG, "sym": False}),
    "awq": (4, False, awq_tensors, AWQ_CONFIG),
    "pack-quantized": (4, True, pack_quantized_tensors, compressed_config()),
    "int-quantized": (8, True, int_quantized_tensors, compressed_config("int-quantized", num_bits=8)),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_a_quantised_checkpoint_gives_the_logits_of_its_dequantised_floats(tmp_path: Path, name: str) -> None:
    bits, symmetric, pack, config = SCHEMES[name]
    quantized: list[SafetensorsTensor] = []
    floats: list[SafetensorsTensor] = []
    for tensor in open_safetensors_dir(TINY_DIR / "llama").values():
        if not tensor.name.endswith("_proj.weight"):
            quantized.append(tensor)
            floats.append(tensor)
            continue
        w = quantize(as_floats(tensor), bits, symmetric)
        quantized += pack(tensor.name.removesuffix(".weight"), w).values()
        floats.append(make_tensor(tensor.name, w.values(), "F32"))
    expected = logits(write_model(tmp_path / "floats", floats, None))
    assert logits(write_model(tmp_path / "quantized", quantized, config)) == expected


def test_a_method_that_is_not_supported_is_refused_by_name(tmp_path: Path) -> None:
    tensors = open_safetensors_dir(TINY_DIR / "llama").values()
    model = write_model(tmp_path / "model", tensors, {"quant_method": "bitsandbytes"})
    with pytest.raises(ModelLoadError, match="quantised with bitsandbytes, which is not supported"):
        LLM(model)
