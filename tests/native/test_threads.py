from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.native import default_num_threads, threads


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make_cgroup(root: Path, membership: str, files: dict[str, str]) -> int | None:
    write(root / "proc/self/cgroup", membership)
    for name, text in files.items():
        write(root / "sys/fs/cgroup" / name, text)
    return threads._cgroup_quota(root)


def test_the_default_is_possible_here() -> None:
    assert 1 <= default_num_threads() <= (os.cpu_count() or 1)


def test_a_v2_quota_is_rounded_down(tmp_path: Path) -> None:
    assert make_cgroup(tmp_path, "0::/job\n", {"job/cpu.max": "350000 100000\n"}) == 3


def test_less_than_a_core_is_one_thread(tmp_path: Path) -> None:
    assert make_cgroup(tmp_path, "0::/job\n", {"job/cpu.max": "50000 100000\n"}) == 1


def test_the_strictest_group_around_counts(tmp_path: Path) -> None:
    files = {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "800000 100000"}
    assert make_cgroup(tmp_path, "0::/a/b\n", files) == 2


def test_inside_a_container_the_mount_is_the_own_group(tmp_path: Path) -> None:
    assert make_cgroup(tmp_path, "0::/docker/0123\n", {"cpu.max": "400000 100000"}) == 4


def test_a_v1_quota_counts(tmp_path: Path) -> None:
    files = {"cpu/job/cpu.cfs_quota_us": "250000", "cpu/job/cpu.cfs_period_us": "100000"}
    assert make_cgroup(tmp_path, "4:cpu,cpuacct:/job\n3:memory:/job\n", files) == 2


def test_a_group_outside_the_containers_view_is_not_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "sys/fs/cpu.max", "100000 100000")
    assert make_cgroup(tmp_path, "0::/../other\n", {"cpu.max": "300000 100000"}) == 3


@pytest.mark.parametrize("files", [{}, {"job/cpu.max": "max 100000"}], ids=["absent", "unlimited"])
def test_no_quota_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert make_cgroup(tmp_path, "0::/job\n", files) is None


def test_hardware_threads_of_a_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", siblings)
    assert threads._physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert threads._physical_cores({0, 1, 3}, tmp_path) == 2


def test_an_unknown_topology_is_no_limit(tmp_path: Path) -> None:
    assert threads._physical_cores({0}, tmp_path) is None
