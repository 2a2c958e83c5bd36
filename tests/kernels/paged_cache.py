"""The paged cache in numpy: what tests fill and read, written from the layout's description, not from the kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

TILE = 16
FLOAT_DTYPES = ("float32", "float16", "bfloat16")
DTYPES = (*FLOAT_DTYPES, "int8")
SCALE_BYTES = 2 * TILE * 4
"""Of a piece of an int8 cache: the scales of its keys, then of its values."""


def round_to(dtype: str, x: NDArray[Any]) -> NDArray[np.float32]:
    """Round to a cache dtype and back: nearest even, float16 saturating."""
    x = np.asarray(x, np.float32)
    if dtype == "float16":
        return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = x.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
        return rounded.astype(np.uint32).view(np.float32)
    return x


def rotate(x: NDArray[Any]) -> NDArray[np.float64]:
    """Multiply each block of the last axis by the Walsh-Hadamard matrix of its size, a power of two."""
    block = x.shape[-1] & -x.shape[-1]
    signs = [[(-1) ** (i & j).bit_count() for j in range(block)] for i in range(block)]
    return (x.reshape(*x.shape[:-1], -1, block).astype(np.float64) @ np.array(signs)).reshape(x.shape)


def unrotate(x: NDArray[Any]) -> NDArray[np.float64]:
    """Undo `rotate`."""
    return rotate(x) / (x.shape[-1] & -x.shape[-1])


@dataclass
class PagedCache:
    """One layer of a pool, and the requests' keys and values [tokens, KVH, D] that it holds."""

    pool: NDArray[np.uint8]
    tables: NDArray[np.int32]
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    layer_offset: int
    keys: list[NDArray[np.float32]] = field(default_factory=list)
    values: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def layout(self) -> dict[str, Any]:
        """The keyword arguments that kernels take."""
        names = ("block_size", "num_kv_heads", "head_dim", "dtype", "layer_offset")
        return {name: getattr(self, name) for name in names}

    def slots(self, request: int, begin: int, end: int) -> NDArray[np.int64]:
        """Slots of the positions [begin, end) of a request."""
        positions = np.arange(begin, end)
        blocks = self.tables[request, positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size

    def layer(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Writable views: K [blocks, tiles, KVH, D, 16] and V [blocks, tiles, KVH, 16, D], as stored."""
        element = np.dtype({"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[self.dtype])
        tiles = self.block_size // TILE
        count = tiles * self.num_kv_heads * 2 * TILE * self.head_dim
        view = self.pool[:, self.layer_offset : self.layer_offset + count * element.itemsize].view(element)
        pieces = view.reshape(len(self.pool), tiles, self.num_kv_heads, 2, TILE * self.head_dim)
        shape = pieces.shape[:3]
        return (
            pieces[:, :, :, 0].reshape(*shape, self.head_dim, TILE),
            pieces[:, :, :, 1].reshape(*shape, TILE, self.head_dim),
        )

    def int8_layer(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Of an int8 cache: scales [blocks, tiles, KVH, 2, 16], and copies of K and V as integers [.., 16, D]."""
        tiles, padded = self.block_size // TILE, -(-self.head_dim // 4) * 4
        piece_bytes = SCALE_BYTES + 2 * TILE * padded
        count = tiles * self.num_kv_heads * piece_bytes
        view = self.pool[:, self.layer_offset : self.layer_offset + count]
        pieces = view.reshape(len(self.pool), tiles, self.num_kv_heads, piece_bytes)
        scales = pieces[..., :SCALE_BYTES].view(np.float32).reshape(*pieces.shape[:3], 2, TILE)
        elements = pieces[..., SCALE_BYTES:].view(np.int8)
        keys = elements[..., : TILE * padded].reshape(*pieces.shape[:3], padded // 2, TILE, 2)
        values = elements[..., TILE * padded :].reshape(*pieces.shape[:3], TILE // 2, padded, 2)
        by_token = (*pieces.shape[:3], TILE, padded)
        return (
            scales,
            np.swapaxes(keys, 3, 4).reshape(by_token)[..., : self.head_dim],
            np.swapaxes(values, 4, 5).reshape(by_token)[..., : self.head_dim],
        )

    def int8_contents(self, request: int, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The keys and values [length, KVH, D] that the first tokens of a request have in an int8 cache."""
        scales, *layers = self.int8_layer()
        block, offset = np.divmod(self.slots(request, 0, length), self.block_size)
        at = (block, offset // TILE, slice(None), offset % TILE)
        stored = (layer[at] * scales[:, :, :, which][at][..., None] for which, layer in enumerate(layers))
        keys, values = (unrotate(x).astype(np.float32) for x in stored)
        return keys, values


def make_cache(
    rng: np.random.Generator,
    lengths: list[int],
    *,
    block_size: int = 16,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    dtype: str = "float32",
    layer_offset: int = 0,
) -> PagedCache:
    """A pool of NaN with shuffled block tables, no keys or values written yet."""
    per_request = [-(-length // block_size) for length in lengths]
    num_blocks = sum(per_request) + 2
    order = rng.permutation(num_blocks)
    tables = np.full((len(lengths), max([*per_request, 1])), -1, np.int32)
    for r, count in enumerate(per_request):
        tables[r, :count], order = order[:count], order[count:]
    vector_bytes = -(-head_dim // 4) * 4 + 4 if dtype == "int8" else head_dim * (4 if dtype == "float32" else 2)
    block_bytes = layer_offset + 2 * block_size * num_kv_heads * vector_bytes + 64
    pool = np.full((num_blocks, block_bytes), 0xFF, np.uint8)
    return PagedCache(pool, tables, block_size, num_kv_heads, head_dim, dtype, layer_offset)


def fill_cache(
    kernels: Any, rng: np.random.Generator, cache: PagedCache, lengths: list[int], scale: float = 1.0
) -> None:
    """Draw keys and values for whole requests and write them with the kernel under test.

    The cache then lists what it holds: values rounded here, of int8 (where a sum's last bit may decide) read back.
    """
    shape = (cache.num_kv_heads, cache.head_dim)
    for r, length in enumerate(lengths):
        k, v = (rng.standard_normal((length, *shape)).astype(np.float32) * scale for _ in range(2))
        rows = (x.reshape(length, shape[0] * shape[1]) for x in (k, v))
        kernels.kv_write(cache.pool, *rows, cache.slots(r, 0, length), **cache.layout)
        stored = cache.int8_contents(r, length) if cache.dtype == "int8" else (round_to(cache.dtype, x) for x in (k, v))
        for part, x in zip((cache.keys, cache.values), stored, strict=True):
            part.append(x)
