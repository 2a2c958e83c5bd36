"""Dequantises GGUF tensors to float32 with numpy: the oracle of the kernel tests, not the way weights are used.

Arithmetic is float32 throughout, in the order of the reference implementation, so results agree bit for bit.

Source: block layouts as in ggml, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.formats.gguf import GgufTensor
from octavo.formats.gguf_types import GgufType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_CHUNK_ELEMENTS = 1 << 22
"""Elements decoded at a time, so that temporaries stay small beside the result."""


def dequantize(tensor: GgufTensor) -> Floats:
    """Return the tensor's values as float32 in its shape."""
    return dequantize_bytes(tensor.data, tensor.type).reshape(tensor.shape)


def dequantize_bytes(data: Bytes, kind: GgufType) -> Floats:
    """Return the values of whole blocks, flat."""
    blocks = data.reshape(-1, kind.block_bytes)
    out = np.empty((len(blocks), kind.block_elements), dtype=np.float32)
    step = max(1, _CHUNK_ELEMENTS // kind.block_elements)
    decode = _DECODERS[kind]
    for start in range(0, len(blocks), step):
        out[start : start + step] = decode(np.ascontiguousarray(blocks[start : start + step]))
    return out.reshape(-1)


def _f16(column: Bytes) -> Floats:
    """Return the float16 numbers in the two-byte columns [B, 2 * n] as float32 [B, n]."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def _nibbles(qs: Bytes) -> Bytes:
    """Return [B, n] packed pairs as [B, 2 * n]: all low nibbles, then all high ones."""
    return np.concatenate([qs & 15, qs >> 4], axis=1)


def _fifth_bits(qh: Bytes) -> Bytes:
    """Return the 32 bits of four bytes, least significant first, as 16 or 0."""
    bits: Bytes = np.unpackbits(qh, axis=1, bitorder="little")
    return np.left_shift(bits, 4, dtype=np.uint8)


def _f32(b: Bytes) -> Floats:
    return b.view("<f4")


def _bf16(b: Bytes) -> Floats:
    return (b.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(b: Bytes) -> Floats:
    return _f16(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(b: Bytes) -> Floats:
    return _f16(b[:, :2]) * (_nibbles(b[:, 2:]).astype(np.int8) - 8).astype(np.float32)


def _q4_1(b: Bytes) -> Floats:
    return _f16(b[:, :2]) * _nibbles(b[:, 4:]).astype(np.float32) + _f16(b[:, 2:4])


def _q5_0(b: Bytes) -> Floats:
    q = _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])
    return _f16(b[:, :2]) * (q.astype(np.int8) - 16).astype(np.float32)


def _q5_1(b: Bytes) -> Floats:
    q = _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])
    return _f16(b[:, :2]) * q.astype(np.float32) + _f16(b[:, 2:4])


def _k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """Unpack twelve bytes [B, 12] into the 6-bit scales and minimums of 8 sub-blocks, each [B, 8]."""
    low, mid, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minimums = np.concatenate([mid & 63, (high >> 4) | ((mid >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _k_nibbles(qs: Bytes) -> Bytes:
    """Return packed [B, 128] as [B, 8, 32]: 32-byte group p holds sub-blocks 2p (low nibbles) and 2p + 1 (high)."""
    groups = qs.reshape(-1, 4, 32)
    return np.stack([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)


def _k_affine(b: Bytes, q: Bytes) -> Floats:
    """Apply the header that Q4_K and Q5_K share to quants [B, 8, 32]: d * scale * q - dmin * minimum."""
    scales, minimums = _k_scales(b[:, 4:16])
    scale = (_f16(b[:, 0:2]) * scales)[:, :, None]
    offset = (_f16(b[:, 2:4]) * minimums)[:, :, None]
    return (scale * q.astype(np.float32) - offset).reshape(-1, 256)


def _q4_k(b: Bytes) -> Floats:
    return _k_affine(b, _k_nibbles(b[:, 16:]))


def _q5_k(b: Bytes) -> Floats:
    sub_block = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = ((b[:, 16:48][:, None, :] >> sub_block) & 1) * np.uint8(16)
    return _k_affine(b, _k_nibbles(b[:, 48:]) | fifth)


def _k_pairs(qs: Bytes) -> Bytes:
    """Return packed pairs of bits [B, 64] as [B, 256]: each 32 bytes hold four runs of 32 values."""
    shift = np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]
    pairs: Bytes = ((qs.reshape(-1, 2, 1, 32) >> shift) & 3).reshape(-1, 256).astype(np.uint8, copy=False)
    return pairs


def _q2_k(b: Bytes) -> Floats:
    q = _k_pairs(b[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    scale = (_f16(b[:, 80:82]) * (b[:, :16] & 15).astype(np.float32))[:, :, None]
    offset = (_f16(b[:, 82:84]) * (b[:, :16] >> 4).astype(np.float32))[:, :, None]
    return (scale * q - offset).reshape(-1, 256)


def _q3_k(b: Bytes) -> Floats:
    third = (b[:, None, :32] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    q = (_k_pairs(b[:, 32:96]) | third.reshape(-1, 256) << 2).astype(np.int8) - 4
    low = np.concatenate([b[:, 96:104] & 15, b[:, 96:104] >> 4], axis=1)
    high = ((b[:, None, 104:108] >> np.array([0, 2, 4, 6], dtype=np.uint8)[None, :, None]) & 3).reshape(-1, 16)
    scale = _f16(b[:, 108:110]) * ((low | high << 4).astype(np.int8) - 32).astype(np.float32)
    values: Floats = (scale[:, :, None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)
    return values


_NON_LINEAR: Floats = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
_FLOAT4_TWICE: Floats = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)


def _iq4_nl(b: Bytes) -> Floats:
    return _f16(b[:, :2]) * _NON_LINEAR[_nibbles(b[:, 2:])]


def _iq4_xs(b: Bytes) -> Floats:
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    high = (np.ascontiguousarray(b[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scale = _f16(b[:, :2]) * (low.astype(np.int16) + (high << 4).astype(np.int16) - 32).astype(np.float32)
    q = _NON_LINEAR[_nibbles(b[:, 8:].reshape(-1, 16))].reshape(-1, 8, 32)
    return (scale[:, :, None] * q).reshape(-1, 256)


def _mxfp4(b: Bytes) -> Floats:
    exponent = b[:, :1].astype(np.uint32)
    half = np.where(exponent < 2, np.uint32(0x200000) << exponent, (exponent - 1) << 23).astype(np.uint32)
    values: Floats = half.view(np.float32) * _FLOAT4_TWICE[_nibbles(b[:, 1:])]
    return values


def _q4_z(b: Bytes) -> Floats:
    d = _f16(b[:, :2])
    return d * _nibbles(b[:, 4:]).astype(np.float32) + _f16(b[:, 2:4]) * d


def _q6_k(b: Bytes) -> Floats:
    ql = b[:, :128].reshape(-1, 2, 1, 64)
    qh = b[:, 128:192].reshape(-1, 2, 1, 32)
    nibble_shift = np.array([0, 4], dtype=np.uint8)[None, None, :, None]
    pair_shift = np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]
    low = ((ql >> nibble_shift) & 15).reshape(-1, 256)
    high = ((qh >> pair_shift) & 3).reshape(-1, 256)
    q = ((low | (high << 4)).astype(np.int8) - 32).astype(np.float32).reshape(-1, 16, 16)
    scale = _f16(b[:, 208:210]) * b[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[:, :, None] * q).reshape(-1, 256)


_DECODERS: dict[GgufType, Callable[[Bytes], Floats]] = {
    GgufType.F32: _f32,
    GgufType.F16: _f16,
    GgufType.BF16: _bf16,
    GgufType.Q8_0: _q8_0,
    GgufType.Q4_0: _q4_0,
    GgufType.Q4_1: _q4_1,
    GgufType.Q5_0: _q5_0,
    GgufType.Q5_1: _q5_1,
    GgufType.Q2_K: _q2_k,
    GgufType.Q3_K: _q3_k,
    GgufType.Q4_K: _q4_k,
    GgufType.Q5_K: _q5_k,
    GgufType.Q6_K: _q6_k,
    GgufType.IQ4_NL: _iq4_nl,
    GgufType.IQ4_XS: _iq4_xs,
    GgufType.MXFP4: _mxfp4,
    GgufType.Q4_Z: _q4_z,
}
