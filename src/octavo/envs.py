"""The one place that reads environment variables, and the list of those Octavo knows.

| variable | means | default |
| --- | --- | --- |
| OCTAVO_CACHE | directory for downloaded models and rebuilt tokenizers | XDG_CACHE_HOME/octavo, else ~/.cache/octavo |
| OCTAVO_API_KEY | key of a server: `octavo serve` asks for it, `octavo top` and `bench serve` bring it | none |
| OCTAVO_ISA | use this ISA level of the kernels: avx512, avx2 or generic | the best the CPU has |

Variables of other tools (HF_HOME, HF_HUB_OFFLINE, HF_TOKEN, PIP_INDEX_URL …) are read by these tools.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the user's cache directory for Octavo; it may not exist yet."""
    own = os.environ.get("OCTAVO_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification has relative paths ignored.
    return (Path(base) if base and os.path.isabs(base) else Path("~/.cache").expanduser()) / "octavo"


def api_key() -> str | None:
    """Return the key that a server is to ask for, as it was set: perhaps empty. None if it was not."""
    return os.environ.get("OCTAVO_API_KEY")


def forced_isa() -> str | None:
    """Return the ISA level the user asks for, or None for the best one."""
    return os.environ.get("OCTAVO_ISA") or None
