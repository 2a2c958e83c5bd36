from __future__ import annotations

from pathlib import Path

import pytest

from octavo.frontend.machine import available_memory_bytes, total_memory_bytes

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 5 kB\nMemAvailable: {12 * GIB // 1024} kB\n"


def make_root(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


V2_MEMORY = {
    "proc/self/cgroup": "0::/pod/app\n",
    "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/pod/memory.current": f"{2 * GIB}\n",
    "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    "sys/fs/cgroup/pod/app/memory.max": "max\n",
}
V1_MEMORY = {
    "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
}


@pytest.mark.parametrize(
    ("files", "available", "total"),
    [({}, 12 * GIB, 16 * GIB), (V2_MEMORY, 3 * GIB, 4 * GIB), (V1_MEMORY, 2 * GIB, 3 * GIB)],
    ids=["bare", "cgroup-v2", "cgroup-v1"],
)
def test_memory_respects_the_container(tmp_path: Path, files: dict[str, str], available: int, total: int) -> None:
    root = make_root(tmp_path, files)
    assert available_memory_bytes(root) == available
    assert total_memory_bytes(root) == total
