"""Writes small GGUF and safetensors files, field by field, so that tests can break any of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

GGUF_SCALAR_TYPES = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
GGUF_ARRAY_TYPES = {"int32": 5, "float32": 6, "uint8": 0, "uint32": 4, "int64": 11}
GGUF_STRING, GGUF_ARRAY = 8, 9

Tensor = tuple[int, Sequence[int], bytes]
"""Type id, dimensions in the file's order (fastest first), data."""


def pack_header(num_tensors: int, num_keys: int, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


def pack_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def pack_value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", GGUF_STRING) + pack_string(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", GGUF_ARRAY, GGUF_STRING, len(value)) + b"".join(map(pack_string, value))
    if isinstance(value, np.ndarray):
        header = struct.pack("<IIQ", GGUF_ARRAY, GGUF_ARRAY_TYPES[value.dtype.name], len(value))
        return header + value.tobytes()
    type_id, code = GGUF_SCALAR_TYPES[type(value)]
    return struct.pack("<I" + code, type_id, value)


def pack_tensor_info(name: str, dims: Sequence[int], type_id: int, offset: int, num_dims: int | None = None) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return pack_string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, type_id, offset)


def make_gguf(metadata: Mapping[str, object], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """Return a valid file with an alignment of 32."""
    tensors = tensors or {}
    out = pack_header(len(tensors), len(metadata))
    out += b"".join(pack_string(key) + pack_value(value) for key, value in metadata.items())
    body = b""
    for name, (type_id, dims, data) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        out += pack_tensor_info(name, dims, type_id, len(body))
        body += data
    return out + b"\0" * (-len(out) % 32) + body


def make_safetensors(header: Mapping[str, Any] | bytes, data: bytes = b"") -> bytes:
    """Return a file with this header, as it stands if given as bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


BYTE_LEVEL_TOKENS = [
    "<|endoftext|>",
    "<|im_end|>",
    *map(chr, range(ord("!"), ord("~") + 1)),
    "Ġ",
    "Ċ",
    "he",
    "ll",
    "hell",
]


def byte_level_metadata(**changes: object) -> dict[str, object]:
    """Return the metadata of a byte-level tokenizer that knows printable ASCII and a few merges."""
    types = np.array([3, 3, *([1] * (len(BYTE_LEVEL_TOKENS) - 2))], dtype=np.int32)
    settings: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": BYTE_LEVEL_TOKENS,
        "token_type": types,
        "merges": ["h e", "l l", "he ll"],
        "bos_token_id": 0,
        "eos_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in settings.items() if value is not None}


SPM_PIECES = ["▁", "h", "e", "l", "o", "w", "r", "d", "▁h", "el", "▁hel", "lo", "▁hello", "or", "▁w", "ld", "▁world"]


def sentencepiece_metadata(**changes: object) -> dict[str, object]:
    """Return the metadata of a SentencePiece tokenizer with byte fallback, a user-defined token and a few pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<tag>", *SPM_PIECES]
    types = np.array([2, 3, 3, *([6] * 256), 4, *([1] * len(SPM_PIECES))], dtype=np.int32)
    scores = np.zeros(len(tokens), dtype=np.float32)
    scores[-len(SPM_PIECES) :] = -np.arange(len(SPM_PIECES), dtype=np.float32)
    settings: dict[str, object] = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in settings.items() if value is not None}
