"""Dequantised values equal the reference implementation's bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from model_files import make_gguf

from octavo.formats.gguf import open_gguf
from octavo.formats.gguf_quants import dequantize, dequantize_bytes
from octavo.formats.gguf_types import SUPPORTED_TYPES, GgufType


@pytest.mark.parametrize("kind", SUPPORTED_TYPES.values(), ids=lambda kind: kind.name)
def test_random_blocks_dequantise_to_the_reference_bits(kind: GgufType) -> None:
    data = np.random.default_rng(kind.type_id).integers(0, 256, (300, kind.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random bytes also make scales that are not finite
        ours = dequantize_bytes(data.reshape(-1), kind)
        theirs = np.asarray(gguf.dequantize(data, gguf.GGMLQuantizationType[kind.name]), dtype=np.float32).reshape(-1)
    both_nan = np.isnan(ours) & np.isnan(theirs)
    assert ours.dtype == np.float32
    assert np.array_equal(ours.view(np.uint32)[~both_nan], theirs.view(np.uint32)[~both_nan])
    assert np.isfinite(ours).any()


def test_a_tensor_dequantises_in_its_shape(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float16)
    path = tmp_path / "m.gguf"
    path.write_bytes(make_gguf({}, {"t": (GgufType.F16.type_id, [3, 2], values.tobytes())}))
    assert np.array_equal(dequantize(open_gguf(path).tensors["t"]), values.reshape(2, 3).astype(np.float32))


def test_large_tensors_are_decoded_in_pieces_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 60, 50 * GgufType.Q4_0.block_bytes, dtype=np.uint8)
    whole = dequantize_bytes(data, GgufType.Q4_0)
    monkeypatch.setattr("octavo.formats.gguf_quants._CHUNK_ELEMENTS", 7 * 32)
    assert np.array_equal(dequantize_bytes(data, GgufType.Q4_0), whole)
