"""Which blocks hold the KV of which tokens: an exact index, not a probabilistic one.

A node stands for one full block of tokens under one exact prefix. Its key is (uid of the node before it, the bytes of
its tokens, extra keys), and uids are never used twice. So two prefixes meet in a node only if they are equal token by
token, by induction, and no hash has to be trusted. Each cache group may hold one block of a node.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.block_pool import Block

ExtraKey = str | None
"""What besides the tokens decides the KV, such as a cache salt."""
NodeKey = tuple[int, bytes, ExtraKey]


@dataclass(slots=True, eq=False)
class PrefixNode:
    """One full block of tokens under one prefix.

    It stays in the index while a group holds a block of it, a longer prefix goes through it, or a running request is
    at it.
    """

    uid: int
    key: NodeKey
    parent: PrefixNode | None
    blocks: list[Block | None]
    """Per cache group."""
    num_links: int = 0
    """Children in the index plus pins of running requests."""


class PrefixIndex:
    """All published prefixes."""

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._nodes: dict[NodeKey, PrefixNode] = {}
        self._last_uid = 0
        self.root = PrefixNode(0, (0, b"", None), None, [None] * num_groups)

    def walk(self, token_ids: array[int], block_size: int, extra: ExtraKey, max_blocks: int) -> list[PrefixNode]:
        """Return the nodes along the full blocks of `token_ids`, at most `max_blocks`, up to the first unknown."""
        nodes: list[PrefixNode] = []
        uid, get = 0, self._nodes.get
        for start in range(0, max_blocks * block_size, block_size):
            node = get((uid, token_ids[start : start + block_size].tobytes(), extra))
            if node is None:
                break
            nodes.append(node)
            uid = node.uid
        return nodes

    def descend(self, node: PrefixNode, token_ids: array[int], block_size: int, extra: ExtraKey) -> PrefixNode:
        """Return the node at these blocks of tokens after `node`, new if need be, and pin it. Mutates: the index."""
        for start in range(0, len(token_ids), block_size):
            node = self.child(node, token_ids[start : start + block_size].tobytes(), extra)
        self.pin(node)
        return node

    def child(self, parent: PrefixNode, token_bytes: bytes, extra: ExtraKey) -> PrefixNode:
        """Return the node of these tokens after `parent`, new if need be.

        Mutates: the index. A new node is held by nothing yet: attach a block or pin it at once.
        """
        key = (parent.uid, token_bytes, extra)
        node = self._nodes.get(key)
        if node is None:
            self._last_uid += 1
            node = self._nodes[key] = PrefixNode(self._last_uid, key, parent, [None] * self._num_groups)
            parent.num_links += 1
        return node

    def pin(self, node: PrefixNode) -> None:
        """Keep `node` until `unpin`, because a request will publish what comes after it. Mutates: node."""
        node.num_links += 1

    def unpin(self, node: PrefixNode) -> None:
        """Undo one `pin`. Mutates: node; the index, if nothing else holds it."""
        node.num_links -= 1
        self._prune(node)

    def attach(self, node: PrefixNode, block: Block) -> None:
        """Publish `block` as its group's block of `node`. Mutates: node, block."""
        assert block.node is None, "a published block is immutable"
        assert node.blocks[block.group] is None, "a group holds one block of a prefix"
        node.blocks[block.group] = block
        block.node = node

    def detach(self, block: Block) -> None:
        """Take a published block out of the index. Mutates: block; the index, if nothing else holds its node."""
        node = block.node
        assert node is not None, "the block is published"
        node.blocks[block.group] = None
        block.node = None
        self._prune(node)

    def _prune(self, node: PrefixNode) -> None:
        """Remove `node`, and those before it, as far as nothing holds them."""
        while node.parent is not None and node.num_links == 0 and not any(node.blocks):
            del self._nodes[node.key]
            node = node.parent
            node.num_links -= 1
