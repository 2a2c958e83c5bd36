"""Run every benchmark on a tiny model with next to no work; fail unless each ends with its JSON, complete.

Those under benchmarks/ too, but for the engines that others make. Takes a minute, and the `test` extra.

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
sys.path.append(str(ROOT / "benchmarks"))
from served import served  # noqa: E402  # a script beside the package, not part of it

BENCH = [sys.executable, "-m", "octavo", "bench"]
MODEL = str(ROOT / "tests" / "data" / "tiny" / "llama")
RECIPE = {"model", "sha256", "machine", "threads", "isa", "versions", "options", "workload"}
JOB = {
    "prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s", "requests_per_s",
    "total_s", "ttft_ms", "tpot_ms", "peak_rss_bytes", "fraction_of_int8_peak", "fraction_of_memory_bandwidth",
    "python_share", "num_steps",
}  # fmt: skip
START = {"python_s", "import_s", "load_s", "first_token_s", "total_s", "peak_rss_bytes"}
SERVED = {"num_requests", "num_failed", "output_tokens_per_s", "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"}
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
SCRIPTS: list[tuple[list[str], set[str]]] = [
    (["served.py", "all", MODEL, "--rounds", "1", "--streams", "2"], {"throughput", "lag", "latency"}),
    (["structured.py", MODEL, "1"], {"forms"}),
    (["neighbours.py", MODEL, "1"], {"gaps", "answers"}),
]
"""Of benchmarks/, beside the comparison; their figures have no recipe."""


def main() -> int:
    """Run all; return 1 at the first that fails."""
    for arguments, keys in BENCHMARKS:
        if not _passes([*BENCH, *arguments, "-m", MODEL, "--json"], keys | {"recipe"}):
            return 1
    if not _serve_passes() or not all(_passes(_script(*arguments), keys) for arguments, keys in SCRIPTS):
        return 1
    with tempfile.TemporaryDirectory() as folder:
        script = _script("run.py", "--tiny", "--rounds", "1", "--model", MODEL, "--output-dir", f"{folder}/results")
        if not _passes(script, {"engines", "linearity", "context", "stall", "busy", "recipe"}):
            return 1
        if "| decode B=1 |" not in (Path(folder) / "RESULTS.md").read_text(encoding="utf-8"):
            print("benchmarks/run.py wrote no table")
            return 1
    return 0


def _script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "benchmarks" / name), *arguments]


def _serve_passes() -> bool:
    """Put load on a server of our own."""
    load = ["--num-prompts", "4", "--num-warmups", "1", "--tokenizer", MODEL, "--ignore-eos", "--json"]
    with served(MODEL, 4) as (port, _):
        return _passes([*BENCH, "serve", "--base-url", f"http://127.0.0.1:{port}", *SMALL, *load], SERVED | {"recipe"})


def _passes(command: list[str], keys: set[str]) -> bool:
    """Run a command; say what its JSON lacks."""
    name = " ".join(Path(part).name if "/" in part else part for part in command[1:])
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: exit status {done.returncode}\n{done.stderr}")
        return False
    documents = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    document = {key: value for each in documents for key, value in each.items()}
    missing = sorted(keys - document.keys())
    if "recipe" in keys:
        missing += sorted(RECIPE - document.get("recipe", {}).keys())
    print(f"{name}: {'missing ' + ', '.join(missing) if missing else 'ok'} ({time.monotonic() - started:.1f} s)")
    return not missing


if __name__ == "__main__":
    sys.exit(main())
