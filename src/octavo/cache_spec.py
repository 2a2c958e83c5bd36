"""What a model asks of the cache: groups of layers that share one block table.

Read by the control plane (which needs only sizes) and by the data plane (which needs the layout).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 512
"""Sizes of a head that the kernels can hold: csrc/cpu/kv_cache.h."""

CacheDtype = Literal["float32", "float16", "bfloat16"]
CACHE_DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class CacheGroupSpec:
    """Attention layers that share one block table.

    Layout of one block (one contiguous extent): for each layer of the group, for each 16-token tile of the
    block, for each kv head: K as [head_dim][16 tokens], then V as [16 tokens][head_dim].
    """

    kind: Literal["full", "sliding"]
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: CacheDtype
    block_size: int
    """Tokens a block holds: 16, 32, 64 or 128."""
    window: int | None = None
    """Tokens a query sees, itself included; None for full attention."""

    @property
    def layer_bytes(self) -> int:
        """Bytes one layer takes in one block."""
        return 2 * self.block_size * self.num_kv_heads * self.head_dim * CACHE_DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers of the group."""
        return self.layer_bytes * self.num_layers
