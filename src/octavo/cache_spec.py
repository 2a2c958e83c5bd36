"""What a model asks of the cache: groups of layers that share one block table.

Read by the control plane (which needs only sizes) and by the data plane (which needs the layout).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 512
"""Sizes of a head that the kernels can hold: csrc/cpu/kv_cache.h."""

CacheDtype = Literal["float32", "float16", "bfloat16", "int8"]
_FLOAT_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class AttentionGroupSpec:
    """Attention layers that share one block table.

    Layout of one block (one contiguous extent): for each layer of the group, for each 16-token tile of the
    block, for each kv head: K as [head_dim][16 tokens], then V as [16 tokens][head_dim].

    With int8, each key and each value has a float32 scale, and elements come in pairs: 16 scales of keys, 16 of values,
    then with D = head_dim rounded up to a multiple of 4: K as [D / 2][16 tokens][2], V as [8 pairs of tokens][D][2].
    Both are rotated before they are rounded: `program/reference.py`, `round_to_int8`.
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
    def vector_bytes(self) -> int:
        """Bytes of the key, or of the value, of one token and kv head."""
        if self.dtype == "int8":
            return (self.head_dim + 3) // 4 * 4 + 4
        return self.head_dim * _FLOAT_BYTES[self.dtype]

    @property
    def layer_bytes(self) -> int:
        """Bytes one layer takes in one block."""
        return 2 * self.block_size * self.num_kv_heads * self.vector_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers of the group."""
        return self.layer_bytes * self.num_layers


OPEN_CHUNK = 16
"""Tokens after which a recurrent layer folds its open rows into its state, at absolute multiples of it."""


STATE_LANES = 16
"""Value dims that lie side by side in a state: the width of the kernels' vectors, csrc/cpu/simd.h."""


@dataclass(frozen=True, slots=True)
class StateGroupSpec:
    """Recurrent (Gated DeltaNet) layers that share one slot for each request, whatever the request's length.

    A slot is this group's block: one contiguous extent, float32, layer by layer. A layer holds, in this order:

    - `state`: S at the last multiple of `OPEN_CHUNK` tokens, in panels of `STATE_LANES` value dims:
      [num_value_heads, padded_value_dim / STATE_LANES, key_dim, STATE_LANES];
    - `border_conv`: the convolution's last `conv_width - 1` inputs before that border, [conv_width - 1, conv_channels];
      only with `keeps_border`, which prefix caching needs: these two are all that a snapshot is made of;
    - `conv`: its last inputs before the next token, [conv_width - 1, conv_channels];
    - `open_keys` [num_key_heads, key_dim, OPEN_CHUNK], `open_updates` [num_value_heads, OPEN_CHUNK, padded_value_dim]
      and `open_decay` [num_value_heads, OPEN_CHUNK]: the rows since that border, as k, u, and what each has decayed by
      since; the last `open_decay` is that of S. How many are valid follows from the position; the rest never matters.
    """

    num_layers: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    """Tokens that one output of the convolution sees, itself included."""
    conv_channels: int
    block_size: int
    """Tokens between two places where a snapshot may be kept: that of the attention groups, a multiple of 16."""
    keeps_border: bool = True
    kind: Literal["state"] = "state"

    @property
    def padded_value_dim(self) -> int:
        """Value dims with the padding of the last panel, which stays zero."""
        return -(-self.value_dim // STATE_LANES) * STATE_LANES

    @property
    def state_floats(self) -> int:
        """Floats of one layer's S."""
        return self.num_value_heads * self.key_dim * self.padded_value_dim

    @property
    def conv_floats(self) -> int:
        """Floats of one layer's convolution inputs, once."""
        return (self.conv_width - 1) * self.conv_channels

    @property
    def snapshot_floats(self) -> int:
        """Floats at the start of each layer that a snapshot is made of: `state` and `border_conv`."""
        return self.state_floats + self.conv_floats * self.keeps_border

    @property
    def open_floats(self) -> int:
        """Floats of one layer's open rows."""
        keys = self.num_key_heads * self.key_dim
        return OPEN_CHUNK * (keys + self.num_value_heads * self.padded_value_dim + self.num_value_heads)

    @property
    def layer_floats(self) -> int:
        """Floats one layer takes in one slot."""
        return self.snapshot_floats + self.conv_floats + self.open_floats

    @property
    def layer_bytes(self) -> int:
        """Bytes one layer takes in one slot."""
        return 4 * self.layer_floats

    @property
    def block_bytes(self) -> int:
        """Bytes of one slot, all layers of the group."""
        return self.layer_bytes * self.num_layers


CacheGroupSpec: TypeAlias = "AttentionGroupSpec | StateGroupSpec"


def num_attention_groups(specs: Sequence[CacheGroupSpec]) -> int:
    """Return how many of the cache groups have a block for every few tokens."""
    return sum(isinstance(spec, AttentionGroupSpec) for spec in specs)
