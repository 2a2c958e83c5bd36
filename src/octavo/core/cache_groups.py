"""What differs between cache groups: how many blocks a request needs, which of them it may drop, what a hit requires.

Lengths are in blocks unless they say tokens. All groups share one block size. In the paged ones a request's tables are
equally long, and an entry that a window left behind is None; in a state group it owns one slot.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from octavo.cache_spec import AttentionGroupSpec

if TYPE_CHECKING:
    from octavo.cache_spec import CacheGroupSpec
    from octavo.core.prefix_index import PrefixNode


def ceil_div(numerator: int, denominator: int) -> int:
    """Return numerator / denominator, rounded up."""
    return -(-numerator // denominator)


class PagedGroup:
    """Attention layers, a block for every few tokens; of a sliding window, the blocks that a token to come can see."""

    unit = "block"

    def __init__(self, group: int, block_size: int, window: int | None) -> None:
        self.group = group
        self.block_size = block_size
        self.has_window = window is not None
        self.window = sys.maxsize if window is None else window
        """Tokens that a token sees, itself included."""

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Return the first table entry that the token after `num_computed_tokens` can still see."""
        return max(0, num_computed_tokens - self.window + 1) // self.block_size

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return the most blocks a request of `num_tokens` holds at once, computed `chunk` tokens at a time."""
        in_window = ceil_div(self.window - 1 + chunk, self.block_size) + 1
        return min(ceil_div(num_tokens, self.block_size), in_window)

    def longest_hit(self, nodes: Sequence[PrefixNode], limit: int) -> int:
        """Return the longest prefix, at most `limit` blocks, of which this group holds what the next token sees.

        Looks for a run of blocks long enough, or from the start, from the end backwards.
        """
        length, run, num_seen = limit, 0, ceil_div(self.window - 1, self.block_size)
        for index in range(limit - 1, -1, -1):
            if run == num_seen:
                break
            if nodes[index].blocks[self.group] is None:
                length, run = index, 0
            else:
                run += 1
        return length


class StateGroup:
    """Recurrent layers: one slot a request, whatever its length. Its published blocks are snapshots of slots."""

    unit = "state slot"

    def __init__(self, group: int) -> None:
        self.group = group

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """See `PagedGroup`."""
        del num_tokens, chunk
        return 1

    def longest_hit(self, nodes: Sequence[PrefixNode], limit: int) -> int:
        """See `PagedGroup`. The last snapshot; nothing before it is needed."""
        while limit and nodes[limit - 1].blocks[self.group] is None:
            limit -= 1
        return limit


CacheGroup: TypeAlias = "PagedGroup | StateGroup"


def make_paged_groups(specs: Sequence[CacheGroupSpec]) -> list[PagedGroup]:
    """Return the behaviour of the attention groups, which come first.

    Raises: ValueError if there is none, if a state group comes before one, or if not all share one block size.
    """
    paged = [spec for spec in specs if isinstance(spec, AttentionGroupSpec)]
    if not paged or list(specs[: len(paged)]) != paged:
        raise ValueError(f"the cache needs an attention group, before all groups of recurrent states: {specs}")
    if len({spec.block_size for spec in specs}) != 1:
        raise ValueError(f"cache groups must share one block size: {specs}")
    return [PagedGroup(group, spec.block_size, spec.window) for group, spec in enumerate(paged)]
