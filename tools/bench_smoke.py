"""Run every benchmark on a tiny model with next to no work; fail unless each ends with its JSON, complete.

usage: python tools/bench_smoke.py    # of speed it checks nothing: that is for idle machines, not for CI
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = str(ROOT / "tests" / "data" / "tiny" / "llama")
RECIPE = {"model", "sha256", "machine", "threads", "isa", "versions", "options", "workload"}
JOB = {
    "prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s", "requests_per_s",
    "total_s", "ttft_ms", "tpot_ms", "peak_rss_bytes", "fraction_of_int8_peak", "fraction_of_memory_bandwidth",
    "python_share", "num_steps",
}  # fmt: skip
START = {"python_s", "import_s", "load_s", "first_token_s", "total_s", "peak_rss_bytes"}
SMALL = ["--input-len", "16", "--output-len", "4"]
BENCHMARKS: list[tuple[list[str], set[str]]] = [
    (["throughput", *SMALL, "--num-prompts", "6", "--length-sigma", "0.5"], JOB),
    (["latency", *SMALL, "--batch-size", "2", "--num-iters", "2", "--num-iters-warmup", "1"], JOB | {"latency_s"}),
    (
        ["kernels", "--batch-sizes", "2", "--input-len", "16", "--context-len", "16", "--min-seconds", "0"],
        {"kernels", "steps", "peaks"},
    ),
    (["startup", "--num-iters", "1"], START),
]


def main() -> int:
    """Run all; return 1 at the first that fails."""
    for arguments, keys in BENCHMARKS:
        if not _passes([sys.executable, "-m", "octavo", "bench", *arguments, "-m", MODEL, "--json"], keys):
            return 1
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--tiny", "--rounds", "1", "--model", MODEL]
        keys = {"engines", "linearity", "context", "stall", "busy"}
        if not _passes([*script, "--output-dir", f"{folder}/results"], keys):
            return 1
        if "| decode B=1 |" not in (Path(folder) / "RESULTS.md").read_text(encoding="utf-8"):
            print("benchmarks/run.py wrote no table")
            return 1
    return 0


def _passes(command: list[str], keys: set[str]) -> bool:
    """Run a command; say what its JSON lacks."""
    name = " ".join(Path(part).name if "/" in part else part for part in command[1:])
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: exit status {done.returncode}\n{done.stderr}")
        return False
    document = json.loads(done.stdout.splitlines()[-1])
    missing = sorted((keys | {"recipe"}) - document.keys()) + sorted(RECIPE - document.get("recipe", {}).keys())
    print(f"{name}: {'missing ' + ', '.join(missing) if missing else 'ok'} ({time.monotonic() - started:.1f} s)")
    return not missing


if __name__ == "__main__":
    sys.exit(main())
