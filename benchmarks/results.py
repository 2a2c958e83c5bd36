"""Results as files: data in results/*.json, and made from it RESULTS.md and the plots.

usage: python benchmarks/results.py    # write RESULTS.md and the plots anew from the data
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plot import line_plot

RESULTS_DIR = Path(__file__).resolve().parent / "results"

_INTRO = """# Measured

Made by `python benchmarks/run.py`, from the data in [results/](results/); [docs/bench.md](../docs/bench.md) tells how.
All engines of a table were measured in turn, in one run, on the machine named above it; tokens per second, medians of
the rounds. Compare ratios, not numbers of different tables.
"""
_NOTHING = "Not measured yet on this version.\n"


def write_results(results: Mapping[str, Any], folder: Path) -> Path:
    """Write the data of one run, and everything made from the data of the folder; return the data's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_slug(results['name'])}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    render(folder)
    return path


def render(folder: Path) -> None:
    """Write RESULTS.md beside the folder, and the plots into it."""
    measured = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    parts = [_INTRO, *("\n".join(_section(results, folder)) for results in measured)]
    if not measured:
        parts.append(_NOTHING)
    (folder.parent / "RESULTS.md").write_text("\n".join(parts), encoding="utf-8")


def _section(results: Mapping[str, Any], folder: Path) -> Iterator[str]:
    recipe = results["recipe"]
    versions = recipe["versions"]
    yield f"## {results['name']}\n"
    yield (
        f"{recipe['machine']['processor']}, {recipe['threads']} threads, {recipe['isa']}; octavo {versions['octavo']} "
        f"({recipe['commit']}), Python {versions['python']}; model sha256 `{recipe['sha256'][:16]}…`; "
        f"{results['rounds']} rounds; {recipe['time']}; load average at the start "
        f"{recipe['machine']['load_average'][0]:.2f}.\n"
    )
    if "engines" in results:
        yield from _comparison(results["engines"])
    yield from _own(results, folder)


def _comparison(engines: Mapping[str, Any]) -> Iterator[str]:
    peers = [name for name in engines if name != "octavo"]
    yield "| work | octavo | " + "".join(f"{name} | ratio | " for name in peers)
    yield "| --- | --- | " + "--- | --- | " * len(peers)
    for work, ours in engines["octavo"]["figures"].items():
        cells = [f"{ours:,.0f}"]
        for name in peers:
            theirs = engines[name]["figures"].get(work)
            cells += [f"{theirs:,.0f}", f"**{ours / theirs:.1f}×**"] if theirs else ["-", "-"]
        yield f"| {work} | " + " | ".join(cells) + " |"
    ours = engines["octavo"]["first_token_s"]
    cells = [f"{ours:.2f} s"]
    for name in peers:
        theirs = engines[name]["first_token_s"]
        cells += [f"{theirs:.2f} s", f"**{theirs / ours:.1f}×**"] if theirs else ["-", "-"]
    yield "| start to first token | " + " | ".join(cells) + " |"
    yield "\n" + "; ".join(f"{name} {engines[name]['version']}" for name in peers) + "\n" if peers else ""


def _own(results: Mapping[str, Any], folder: Path) -> Iterator[str]:
    slug = _slug(results["name"])
    if "linearity" in results:
        steps = {entry["batch_size"]: entry["step_ms"] for entry in results["linearity"]}
        _plot(folder / f"{slug}-batch.svg", "Decode step by batch size", "requests", {"": sorted(steps.items())})
        yield f"![Time of a decode step by batch size](results/{slug}-batch.svg)\n"
        if {32, 64} <= steps.keys():
            yield f"t(64) / t(32) = {steps[64] / steps[32]:.2f} at one context.\n"
    if "context" in results:
        series: dict[str, list[tuple[float, float]]] = {}
        for entry in results["context"]:
            series.setdefault(f"B={entry['batch_size']}", []).append((entry["context_len"], entry["step_ms"]))
        _plot(folder / f"{slug}-context.svg", "Decode step by context", "tokens of context", series)
        yield f"![Time of a decode step by context](results/{slug}-context.svg)\n"
    if "stall" in results:
        stall = results["stall"]
        alone = stall["p99_itl_ms"]["alone"]
        yield f"8 requests decode, a prompt of {stall['prompt_len']:,} tokens arrives; their p99 time between tokens:\n"
        yield "| | ms | ratio |\n| --- | --- | --- |"
        for name, value in stall["p99_itl_ms"].items():
            yield f"| {name} | {value:.1f} | {value / alone:.1f}× |"
        yield f"\n`target_itl_ms` was {stall['target_itl_ms']:.1f}.\n"
    if "busy" in results:
        busy = results["busy"]
        yield (
            f"A decode step of 8 requests beside two busy processes: {busy['beside_two_busy_ms']:.1f} ms, alone "
            f"{busy['alone_ms']:.1f} ms: {busy['slowdown']:.1f}×.\n"
        )


def _plot(path: Path, title: str, x_label: str, series: Mapping[str, list[tuple[float, float]]]) -> None:
    path.write_text(line_plot(title, x_label, "ms", series), encoding="utf-8")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


if __name__ == "__main__":
    render(RESULTS_DIR)
