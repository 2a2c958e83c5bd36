"""Whatever happens to a file's bytes, opening it either works or raises ModelLoadError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import byte_level_metadata, make_gguf, make_safetensors, sentencepiece_metadata

from octavo.errors import ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.formats.gguf_quants import dequantize
from octavo.formats.gguf_types import SUPPORTED_TYPES, GgufType
from octavo.formats.safetensors import open_safetensors
from octavo.tokenizer.tokenizer import Tokenizer

TENSORS = {
    "f": (GgufType.F32.type_id, [8, 2], bytes(64)),
    "q": (GgufType.Q4_0.type_id, [32], bytes(18)),
}
PLAIN_GGUF = make_gguf({"s": "text", "n": 3, "l": ["a", "b"], "a": np.arange(3, dtype=np.int32)}, TENSORS)
BYTE_LEVEL_GGUF = make_gguf(byte_level_metadata())
SENTENCEPIECE_GGUF = make_gguf(sentencepiece_metadata())
GEMMA4_GGUF = make_gguf(
    sentencepiece_metadata(model="gemma4", scores=None, merges=["▁ h", "e l", "▁h el", "l o", "▁hel lo", "o r"])
)
KINDS_GGUF = make_gguf(
    {},
    {
        kind.name: (type_id, [kind.block_elements], bytes(range(1, 1 + kind.block_bytes)))
        for type_id, kind in SUPPORTED_TYPES.items()
    },
)
SPLIT_GGUF = make_gguf({"split.no": 0, "split.count": 2, "split.tensors.count": 3}, TENSORS)
OTHER_PART = make_gguf({"split.no": 1, "split.count": 2}, {"g": (GgufType.F32.type_id, [4], bytes(16))})
SAFETENSORS = make_safetensors(
    {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]},
    },
    bytes(24),
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Change up to eight bytes, or put a random 64-bit number somewhere; then perhaps cut the end off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 8))):
        position = draw(st.integers(0, len(data) - 1))
        if draw(st.booleans()):
            data[position] = draw(st.integers(0, 255))
        else:
            data[position : position + 8] = draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little")
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


def read_gguf(path: Path) -> None:
    file = open_gguf(path)
    for value in file.metadata.values():
        repr(value)
    with np.errstate(all="ignore"):
        for tensor in file.tensors.values():
            assert dequantize(tensor).shape == tensor.shape


def read_split(path: Path) -> None:
    """Read a file as the first and as the last part of a model whose other part is sound."""
    parts = [path.with_name(f"m-0000{number}-of-00002.gguf") for number in (1, 2)]
    for part, other, sound in [(*parts, OTHER_PART), (*reversed(parts), SPLIT_GGUF)]:
        other.write_bytes(sound)
        part.write_bytes(path.read_bytes())
        with contextlib.suppress(ModelLoadError):
            read_gguf(part)
    parts[0].write_bytes(path.read_bytes())
    parts[1].write_bytes(OTHER_PART)
    read_gguf(parts[1])


def read_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(open_gguf(path))
    tokenizer.decode(tokenizer.encode("hello <tag> world"))


def read_safetensors(path: Path) -> None:
    for tensor in open_safetensors(path).values():
        tensor.data.sum()


@pytest.mark.parametrize(
    ("whole", "read", "num_examples"),
    [
        pytest.param(PLAIN_GGUF, read_gguf, 400, id="gguf"),
        pytest.param(BYTE_LEVEL_GGUF, read_tokenizer, 150, id="byte-level-tokenizer"),
        pytest.param(SENTENCEPIECE_GGUF, read_tokenizer, 150, id="sentencepiece-tokenizer"),
        pytest.param(GEMMA4_GGUF, read_tokenizer, 150, id="gemma4-tokenizer"),
        pytest.param(KINDS_GGUF, read_gguf, 300, id="all-types"),
        pytest.param(SPLIT_GGUF, read_split, 200, id="split-gguf"),
        pytest.param(SAFETENSORS, read_safetensors, 400, id="safetensors"),
    ],
)
@pytest.mark.usefixtures("own_cache")
def test_damaged_files_only_ever_raise_model_load_errors(
    tmp_path: Path, whole: bytes, read: Callable[[Path], None], num_examples: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(whole)
    read(path)

    @settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(whole))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(ModelLoadError):
            read(path)

    check()
