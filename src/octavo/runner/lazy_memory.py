"""Anonymous memory that is zero at birth and committed only where it is touched."""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_LINUX_MAP_NORESERVE = 0x4000
"""The mmap module names it from Python 3.13 on; the value is the same on x86 and ARM."""


def reserve(num_bytes: int, *, huge_pages: bool) -> mmap.mmap:
    """Return a mapping of `num_bytes`, rounded up to pages; nothing of it takes memory yet.

    `huge_pages` asks the system for large pages, which dense, long-lived data gains from and scattered data wastes.
    """
    size = max(1, -(-num_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":
        flags |= _LINUX_MAP_NORESERVE
    mapping = mmap.mmap(-1, size, flags=flags)
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return mapping  # a kernel without transparent huge pages: only slower
    return mapping


def lazy_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros of which only the touched pages take memory.

    Unlike `numpy.zeros`, which asks for huge pages: one touched row would commit 2 MiB.
    """
    item = np.dtype(dtype)
    count = int(np.prod(shape))
    mapping = reserve(count * item.itemsize, huge_pages=False)
    return np.frombuffer(mapping, item, count).reshape(shape)
