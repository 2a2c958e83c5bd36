"""The control groups this process is in, version 1 or 2: where containers have their limits."""

from __future__ import annotations

from pathlib import Path


def own_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of the groups that may limit what `controller` does ("cpu", "memory"), innermost first.

    Inside a container a path may not exist, because the container's own group is the top.

    Args:
        root: where /proc and /sys are.
    """
    folders: dict[Path, None] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = Path(path.lstrip("/"))
        if ".." in own.parts:  # a group outside this container's view
            own = Path()
        folders.update(dict.fromkeys(top / group for group in (own, *own.parents)))
    return list(folders)


def read_text(path: Path) -> str | None:
    """Return a small file's text without white space around it, or None if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
