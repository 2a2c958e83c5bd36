"""How each engine is started: one process a round, which does all the work and says what it took."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from octavo.bench.startup import with_bytecode

PEERS_DIR = Path(__file__).resolve().parent / "peers"
_ADAPTERS = {
    "octavo": "octavo_adapter.py",
    "vllm": "vllm_adapter.py",
    "openvino": "openvino_adapter.py",
    "transformers": "transformers_adapter.py",
}


@dataclass(frozen=True)
class Round:
    """What one process of an engine did."""

    version: str
    figures: Mapping[str, float]
    """Tokens per second by the name of the work."""
    ready_s: float | None = None
    """From the start of the process until the model was loaded."""
    first_token_s: float | None = None
    """From there on also the first token of a short prompt."""


class EngineRunner(Protocol):
    """An engine that can be run."""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        ...

    def run(self, work: list[dict[str, Any]], first: list[int], threads: int) -> Round:
        """Do the work in a new process. `first` is the prompt of the first token."""
        ...


@dataclass(frozen=True)
class PythonEngine:
    """An engine with an adapter, run by the interpreter of its own environment."""

    name: str
    model: str
    python: str = sys.executable
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, work: list[dict[str, Any]], first: list[int], threads: int) -> Round:
        """See `EngineRunner`."""
        job = {"model": self.model, "threads": threads, "options": dict(self.options), "first": first, "work": work}
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(job, file)
            file.flush()
            command = [self.python, str(PEERS_DIR / _ADAPTERS[self.name]), file.name, repr(time.monotonic())]
            return Round(**_last_document(run_process(command)))


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp's own benchmarks. They make their own prompts, of the same lengths; a job is a batch of equal ones."""

    model: str
    bench: Path
    batched_bench: Path | None
    name: str = "llama.cpp"

    def run(self, work: list[dict[str, Any]], first: list[int], threads: int) -> Round:
        """See `EngineRunner`. Work that the benchmarks cannot do, such as requests of unequal lengths, is left out."""
        del first
        figures: dict[str, float] = {}
        version = ""
        for entry in work:
            if entry["kind"] == "prefill":
                record = self._bench(threads, len(entry["prompts"][0]), len(entry["prompts"]))
                figures[entry["name"]], version = record["avg_ts"], f"build {record['build_number']}"
            elif self.batched_bench is not None and (batch := _equal_batch(entry)) is not None:
                record = self._batched_bench(threads, *batch)
                speed = record["speed_tg"] if entry["kind"] == "decode" else batch[0] * batch[2] / record["t"]
                figures[entry["name"]] = speed
        return Round(version or "unknown build", figures)

    def _bench(self, threads: int, prompt_len: int, repeats: int) -> dict[str, Any]:
        lengths = ["-p", str(prompt_len), "-n", "0", "-r", str(repeats), "-o", "json"]
        records = json.loads(run_process([str(self.bench), "-m", self.model, "-t", str(threads), *lengths]))
        return dict(records[0])

    def _batched_bench(self, threads: int, size: int, prompt_len: int, output_len: int) -> dict[str, Any]:
        context = size * (prompt_len + output_len) + 64
        lengths = ["-npp", str(prompt_len), "-ntg", str(output_len), "-npl", str(size), "-c", str(context)]
        options = ["-t", str(threads), "-fa", "on", "-b", "2048", "-ub", "512", "--output-format", "jsonl"]
        return _last_document(run_process([str(self.batched_bench), "-m", self.model, *options, *lengths]))


def _last_document(output: str) -> dict[str, Any]:
    """Return the last line that is a JSON object; some engines write their log to stdout, also after it."""
    return dict(json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{"))))


def _equal_batch(entry: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return (requests, prompt length, output length) if all requests are of equal lengths."""
    lengths = {len(prompt) for prompt in entry["prompts"]}
    if entry["kind"] == "decode":
        return len(entry["prompts"]) // 2, min(lengths), entry["output_len"]
    outputs = set(entry["output_lens"])
    return (len(entry["prompts"]), min(lengths), min(outputs)) if len(lengths) == len(outputs) == 1 else None


def run_process(command: list[str]) -> str:
    """Run a command and return its stdout; end the comparison with what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=with_bytecode())
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done.stdout
