"""What differs between cache groups: how many blocks a request needs, which of them it may drop, what a hit requires.

Lengths are in blocks unless they say tokens. All groups share one block size, so a request's tables are equally long;
an entry that a window left behind is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.cache_spec import AttentionGroupSpec

if TYPE_CHECKING:
    from octavo.cache_spec import CacheGroupSpec
    from octavo.core.prefix_index import PrefixNode


def ceil_div(numerator: int, denominator: int) -> int:
    """Return numerator / denominator, rounded up."""
    return -(-numerator // denominator)


class FullGroup:
    """Layers whose every token sees all tokens before it: all blocks are kept."""

    has_window = False

    def __init__(self, group: int, block_size: int) -> None:
        self.group = group
        self.block_size = block_size

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Return the first table entry that the token after `num_computed_tokens` can still see."""
        del num_computed_tokens
        return 0

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return the most blocks a request of `num_tokens` holds at once, computed `chunk` tokens at a time."""
        del chunk
        return ceil_div(num_tokens, self.block_size)

    def longest_hit(self, nodes: Sequence[PrefixNode], limit: int) -> int:
        """Return the longest prefix, at most `limit` blocks, of which this group holds what the next token sees."""
        for length in range(limit):
            if nodes[length].blocks[self.group] is None:
                return length
        return limit


class SlidingGroup(FullGroup):
    """Layers whose tokens see the last `window` tokens, themselves included: older blocks are dropped."""

    has_window = True

    def __init__(self, group: int, block_size: int, window: int) -> None:
        super().__init__(group, block_size)
        self.window = window
        self.num_hit_blocks = ceil_div(window - 1, block_size)
        """Blocks before a block border that the token after it sees."""

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """See `FullGroup`."""
        return max(0, num_computed_tokens - self.window + 1) // self.block_size

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """See `FullGroup`."""
        in_window = ceil_div(self.window - 1 + chunk, self.block_size) + 1
        return min(ceil_div(num_tokens, self.block_size), in_window)

    def longest_hit(self, nodes: Sequence[PrefixNode], limit: int) -> int:
        """See `FullGroup`. Looks for a run of blocks long enough, or from the start, from the end backwards."""
        length, run = limit, 0
        for index in range(limit - 1, -1, -1):
            if run == self.num_hit_blocks:
                break
            if nodes[index].blocks[self.group] is None:
                length, run = index, 0
            else:
                run += 1
        return length


def make_groups(specs: Sequence[CacheGroupSpec]) -> list[FullGroup]:
    """Return the behaviour of each cache group."""
    return [
        FullGroup(group, spec.block_size) if spec.window is None else SlidingGroup(group, spec.block_size, spec.window)
        for group, spec in enumerate(specs)
        if isinstance(spec, AttentionGroupSpec)
    ]
