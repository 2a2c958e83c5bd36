"""The processor, and the memory that this process may use: the machine's, within the limits of containers."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from octavo.native.cgroups import own_groups, read_text

_UNLIMITED = 1 << 60
"""Limits above this mean "none": cgroup v1 writes a huge number."""


def processor_name(root: Path = Path("/")) -> str:
    """Return what the processor calls itself."""
    lines = (read_text(root / "proc/cpuinfo") or "").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def peak_rss_bytes() -> int:
    """Return the most memory that this process has had resident so far; pages of mapped files count."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Return the bytes this process can still take without swapping or being killed.

    Args:
        root: where /proc and /sys are.
    """
    available = _meminfo(root).get("MemAvailable", 4 << 30)
    for limit, used in _cgroup_memory(root):
        available = min(available, max(0, limit - used))
    return available


def total_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory of the machine, or of the container where that is less."""
    total = _meminfo(root).get("MemTotal", 4 << 30)
    return min([total, *(limit for limit, _ in _cgroup_memory(root))])


def _meminfo(root: Path) -> dict[str, int]:
    sizes = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdecimal():
            sizes[name] = int(number[0]) * 1024
    return sizes


def _cgroup_memory(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, used) bytes of the groups this process is in, up to the top."""
    for folder in own_groups("memory", root):
        for limit_name, used_name, stat_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(folder / limit_name)
            if limit is not None and limit < _UNLIMITED:
                used = _number(folder / used_name) or 0
                yield limit, max(0, used - _stat(folder / "memory.stat", stat_name))


def _stat(path: Path, key: str) -> int:
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdecimal():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.lstrip("-").isdecimal() else None
