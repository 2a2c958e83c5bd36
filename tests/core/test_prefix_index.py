from __future__ import annotations

from array import array

import pytest
from cache_integrity import check_index

from octavo.core.block_pool import Block
from octavo.core.prefix_index import PrefixIndex, PrefixNode


def token_bytes(*token_ids: int) -> bytes:
    return array("i", token_ids).tobytes()


def publish(
    index: PrefixIndex, parent: PrefixNode, *token_ids: int, salt: str | None = None
) -> tuple[PrefixNode, Block]:
    node, block = index.child(parent, token_bytes(*token_ids), salt), Block(0, 0)
    index.attach(node, block)
    return node, block


def walk(index: PrefixIndex, *token_ids: int, salt: str | None = None) -> list[PrefixNode]:
    return index.walk(array("i", token_ids), 2, salt, len(token_ids) // 2)


def test_a_walk_ends_at_the_first_unknown_block() -> None:
    index = PrefixIndex(1)
    first, _ = publish(index, index.root, 1, 2)
    second, _ = publish(index, first, 3, 4)
    assert walk(index, 1, 2, 3, 4, 5, 6) == [first, second]
    assert walk(index, 1, 2, 9, 9, 3, 4) == [first]
    assert walk(index, 3, 4) == []


def test_equal_blocks_under_different_prefixes_are_different_nodes() -> None:
    index = PrefixIndex(1)
    left, _ = publish(index, index.root, 1, 1)
    right, _ = publish(index, index.root, 2, 2)
    publish(index, left, 3, 3)
    assert walk(index, 2, 2, 3, 3) == [right]


def test_a_salt_separates_prefixes_from_the_first_block_on() -> None:
    index = PrefixIndex(1)
    salted, _ = publish(index, index.root, 1, 2, salt="x")
    assert walk(index, 1, 2) == []
    assert walk(index, 1, 2, salt="x") == [salted]


def test_a_prefix_published_again_gets_a_new_uid_and_none_of_the_old_continuations() -> None:
    index = PrefixIndex(1)
    first, first_block = publish(index, index.root, 1, 2)
    second, second_block = publish(index, first, 3, 4)
    index.detach(second_block)
    index.detach(first_block)
    again, _ = publish(index, index.root, 1, 2)
    assert again.uid > second.uid
    assert walk(index, 1, 2, 3, 4) == [again]


def test_a_node_without_blocks_stays_while_a_longer_prefix_goes_through_it() -> None:
    index = PrefixIndex(1)
    first, first_block = publish(index, index.root, 1, 2)
    second, second_block = publish(index, first, 3, 4)
    index.detach(first_block)
    assert walk(index, 1, 2, 3, 4) == [first, second]
    index.detach(second_block)
    assert walk(index, 1, 2) == []
    assert index.root.num_links == 0
    check_index(index, [])


def test_a_pinned_node_stays_until_it_is_unpinned() -> None:
    index = PrefixIndex(1)
    node, block = publish(index, index.root, 1, 2)
    index.pin(node)
    index.detach(block)
    assert walk(index, 1, 2) == [node]
    index.unpin(node)
    assert walk(index, 1, 2) == []


def test_a_published_block_cannot_be_published_again() -> None:
    index = PrefixIndex(1)
    _, block = publish(index, index.root, 1, 2)
    with pytest.raises(AssertionError, match="immutable"):
        index.attach(index.child(index.root, token_bytes(3, 4), None), block)


def test_integrity_notices_a_node_that_nothing_holds() -> None:
    index = PrefixIndex(1)
    index.child(index.root, token_bytes(1, 2), None)
    with pytest.raises(AssertionError, match="held by nothing"):
        check_index(index, [])


def test_integrity_notices_a_pin_that_nobody_has() -> None:
    index = PrefixIndex(1)
    node, _ = publish(index, index.root, 1, 2)
    index.pin(node)
    check_index(index, [node])
    with pytest.raises(AssertionError, match="miscounts its links"):
        check_index(index, [])
