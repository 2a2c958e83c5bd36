"""The experiments by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.explain.lab.batching import run_batching
from octavo.explain.lab.block_size import run_block_size
from octavo.explain.lab.chunked_prefill import run_chunked_prefill
from octavo.explain.lab.compare import LabSettings
from octavo.explain.lab.kv_cache import run_kv_cache
from octavo.explain.lab.memory import run_memory
from octavo.explain.lab.prefix import run_prefix
from octavo.explain.lab.report import LabReport

EXPERIMENTS: Mapping[str, Callable[[LabSettings], LabReport]] = {
    "batching": run_batching,
    "memory": run_memory,
    "kv-cache": run_kv_cache,
    "prefix": run_prefix,
    "block-size": run_block_size,
    "chunked-prefill": run_chunked_prefill,
}
