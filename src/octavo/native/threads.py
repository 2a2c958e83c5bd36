"""How many threads a step uses by default: no more than the cores that this process may really use."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.native.cgroups import own_groups, read_text


def default_num_threads() -> int:
    """Return the least of: CPUs in the affinity mask, the cgroup's CPU quota, physical cores; at least 1."""
    cpus = _affinity()
    limits = [len(cpus), _physical_cores(cpus), _cgroup_quota()]
    return max(1, min(limit for limit in limits if limit is not None))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _physical_cores(cpus: set[int], root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Count cores, not hardware threads, among `cpus`; None if the system does not say."""
    siblings = {read_text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list") for cpu in cpus}
    return None if None in siblings else len(siblings)


def _cgroup_quota(root: Path = Path("/")) -> int | None:
    """Return whole CPUs of the strictest quota of this process's control groups; None without one."""
    quotas = [quota for group in own_groups("cpu", root) if (quota := _quota(group)) is not None]
    return max(1, int(min(quotas))) if quotas else None


def _quota(group: Path) -> float | None:
    """Return the CPUs that a group may use, as version 2 or 1 has them."""
    quota, _, period = (read_text(group / "cpu.max") or "max").partition(" ")
    if quota == "max":
        quota, period = read_text(group / "cpu.cfs_quota_us") or "-1", read_text(group / "cpu.cfs_period_us") or "0"
    return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
