"""What a benchmark hands out: the recipe to repeat it, the figures as one JSON document, a table for people."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config import EngineConfig
from octavo.frontend.machine import processor_name, total_memory_bytes
from octavo.version import __version__
from octavo.weights.hub import resolve_model_files

if TYPE_CHECKING:
    from octavo.native.peaks import ThreadPeaks

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """One finished benchmark."""

    benchmark: str
    recipe: Mapping[str, Any]
    figures: Mapping[str, Any]
    """Top-level entries of the JSON document."""
    table: str

    def to_json(self) -> str:
        """Return the document, on one line."""
        return json.dumps({"benchmark": self.benchmark, "recipe": self.recipe, **self.figures}, default=_plain)


def make_recipe(
    config: EngineConfig | None, *, num_threads: int, isa: str, workload: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is needed to repeat a measurement.

    Args:
        config: of the engine; None where no model was loaded.
        workload: what was run, in plain values.
    """
    import numpy as np

    return {
        **(_model_facts(config) if config is not None else {"model": None, "sha256": None}),
        "machine": {
            "processor": processor_name(),
            "logical_cpus": os.cpu_count(),
            "memory_bytes": total_memory_bytes(),
            "load_average": list(os.getloadavg()),
        },
        "threads": num_threads,
        "isa": isa,
        "versions": {
            "octavo": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "system": platform.platform(),
        },
        "options": _changed_options(config) if config is not None else {},
        "workload": dict(workload),
        "command": sys.argv,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def peaks_as_json(peaks: ThreadPeaks) -> dict[str, Any]:
    """Return measured peaks in plain values."""
    return {
        "int8_ops_per_s": peaks.int8_ops_per_s,
        "fp32_flops_per_s": peaks.fp32_flops_per_s,
        "read_bytes_per_s": {str(size): rate for size, rate in peaks.read_bytes_per_s.items()},
    }


def model_sha256(path: Path) -> str:
    """Return the hash of a model file; of a directory, that of the list of its weight and config files' hashes."""
    if not path.is_dir():
        return _file_sha256(path)
    files = sorted([*path.glob("*.safetensors"), path / "config.json"])
    listing = "".join(f"{_file_sha256(file)}  {file.name}\n" for file in files if file.is_file())
    return hashlib.sha256(listing.encode()).hexdigest()


def format_columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table: the first column to the left, the others, which are numbers, to the right."""
    lines = [list(header), *([format_number(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def format_facts(facts: Iterable[tuple[str, object]]) -> str:
    """Return lines of a name and a value."""
    listed = [(name, format_number(value)) for name, value in facts]
    width = max(len(name) for name, _ in listed)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in listed)


def format_number(value: object) -> str:
    """Return a value as people read it: three digits or all before the point, thousands apart; nothing is a dash."""
    if value is None:
        return "-"
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_number(entry)}" for name, entry in value.items())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def _model_facts(config: EngineConfig) -> dict[str, Any]:
    path = resolve_model_files(config.model, config.revision, config.download_dir).path
    return {"model": config.model, "sha256": model_sha256(path)}


def _changed_options(config: EngineConfig) -> dict[str, Any]:
    """Return the options that are not at their defaults."""
    values = config.to_dict()
    return {
        entry.name: values[entry.name]
        for entry in fields(EngineConfig)
        if entry.name != "model" and values[entry.name] != entry.default
    }


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is no plain value")
