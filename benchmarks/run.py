"""Compares octavo with other engines on the same work, and writes the ratios to benchmarks/RESULTS.md.

usage: python benchmarks/run.py --model smollm2-135m [--llama-bench PATH] [--llama-batched-bench PATH]
           [--peers vllm=PYTHON,openvino=PYTHON] [--hf-model DIR] [--openvino-model DIR] [--only prefill,decode,...]

Each engine runs in a process of its own while nothing else does, A B A B, several rounds; a figure is the median of its
rounds. Numbers of different runs are not comparable: ratios are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from engines import EngineRunner, LlamaCpp, PythonEngine, Round
from own import OwnMeasures
from results import RESULTS_DIR, write_results
from work import FULL, TINY, Scale, make_work

from octavo.bench.report import make_recipe
from octavo.bench.workload import ordinary_token_ids
from octavo.config import EngineConfig
from octavo.frontend.resolve import load_tokenizer, resolve
from octavo.native import default_num_threads, kernels

COMPARED = ("prefill", "decode", "job", "mixed", "startup")
OWN = ("linearity", "context", "stall", "busy")
_WORKLOAD = ("rounds", "only", "input_len", "output_len", "batch_sizes", "options", "peer_options", "tiny")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for, write data and tables."""
    args = _parse(arguments)
    names = set(args.only.split(",")) if args.only else {*COMPARED, *OWN}
    if names - {*COMPARED, *OWN}:
        raise SystemExit(f"--only takes {', '.join((*COMPARED, *OWN))}; got {', '.join(sorted(names))}")
    scale = _scale(args)
    options = {"num_threads": args.threads, **json.loads(args.options)}
    config = EngineConfig(args.model, **options)
    resolved = resolve(config)
    tokenizer, max_model_len = load_tokenizer(config, resolved.model), resolved.longest
    work = make_work(names, scale, tokenizer, max_model_len)
    results: dict[str, Any] = {"name": args.name or Path(args.model).stem, "rounds": args.rounds}
    if os.getloadavg()[0] > 0.5 * resolved.num_threads:
        _say(f"warning: the machine is not idle, its load average is {os.getloadavg()[0]:.1f}")
    results["recipe"] = _recipe(config, resolved.num_threads, args)
    if names & {*COMPARED}:
        first = ordinary_token_ids(tokenizer)[100:108]
        results["engines"] = _compare(_engines(args), work, first, resolved.num_threads, args.rounds)
    own = OwnMeasures(config, options, scale, max_model_len)
    for name in (name for name in OWN if name in names):
        _say(f"octavo: {name}")
        results[name] = getattr(own, name)()
    results["load_average_after"] = list(os.getloadavg())
    path = write_results(results, Path(args.output_dir))
    _say(f"wrote {path}")
    print(json.dumps(results))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="of octavo: a path, a hub id or a built-in name")
    parser.add_argument("--name", help="of the results; by default the model's")
    parser.add_argument("--options", default="{}", help="octavo's engine options, as JSON")
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=f"some of {','.join((*COMPARED, *OWN))}")
    parser.add_argument("--llama-bench", type=Path)
    parser.add_argument("--llama-batched-bench", type=Path)
    parser.add_argument("--llama-model", help="GGUF file for llama.cpp; by default the model, if that is one")
    parser.add_argument("--peers", default="", help="NAME=PYTHON[,...]; names: vllm, openvino, transformers")
    parser.add_argument("--peer-options", default="{}", help="options of peers as JSON: {NAME: {...}}")
    parser.add_argument("--hf-model", help="directory of the checkpoint for vllm and transformers")
    parser.add_argument("--openvino-model", help="directory of the converted model")
    parser.add_argument(
        "--input-len", type=int, help="tokens of each prompt that is decoded from; less for large models"
    )
    parser.add_argument("--output-len", type=int, help="tokens that each of them decodes")
    parser.add_argument("--batch-sizes", help="of decoding, as 1,8,32")
    parser.add_argument("--output-dir", default=str(RESULTS_DIR))
    parser.add_argument("--tiny", action="store_true", help="next to no work, to see that everything runs")
    return parser.parse_args(arguments)


def _scale(args: argparse.Namespace) -> Scale:
    """Return how much work is wanted."""
    sizes = args.batch_sizes and tuple(map(int, args.batch_sizes.split(",")))
    wanted = {"input_len": args.input_len, "output_len": args.output_len, "batch_sizes": sizes}
    return replace(TINY if args.tiny else FULL, **{name: value for name, value in wanted.items() if value})


def _engines(args: argparse.Namespace) -> list[EngineRunner]:
    """Return octavo and the peers that were named."""
    engines: list[EngineRunner] = [PythonEngine("octavo", args.model, options=json.loads(args.options))]
    if args.llama_bench is not None:
        from octavo.weights.hub import resolve_model_files

        model = args.llama_model or str(resolve_model_files(args.model).path)
        engines.append(LlamaCpp(model, args.llama_bench, args.llama_batched_bench))
    options = json.loads(args.peer_options)
    for entry in filter(None, args.peers.split(",")):
        name, _, python = entry.partition("=")
        if name not in ("vllm", "openvino", "transformers") or not python:
            raise SystemExit(f"--peers takes vllm=PYTHON, openvino=PYTHON, transformers=PYTHON; got {entry!r}")
        model = args.openvino_model if name == "openvino" else args.hf_model
        if model is None:
            raise SystemExit(f"{name} needs --{'openvino-model' if name == 'openvino' else 'hf-model'}")
        engines.append(PythonEngine(name, model, python, options.get(name, {})))
    return engines


def _compare(
    engines: Sequence[EngineRunner], work: list[dict[str, Any]], first: list[int], threads: int, num_rounds: int
) -> dict[str, Any]:
    """Run all engines in turn, round after round; return medians and all rounds by engine."""
    rounds: dict[str, list[Round]] = {engine.name: [] for engine in engines}
    for number in range(num_rounds):
        for engine in engines:
            _say(f"round {number + 1} of {num_rounds}: {engine.name}")
            rounds[engine.name].append(engine.run(work, first, threads))
    return {name: _summary(done) for name, done in rounds.items()}


def _summary(rounds: Sequence[Round]) -> dict[str, Any]:
    figures: Mapping[str, float] = {name: median(entry.figures[name] for entry in rounds) for name in rounds[0].figures}
    starts = [entry.first_token_s for entry in rounds if entry.first_token_s is not None]
    return {
        "version": rounds[0].version,
        "figures": figures,
        "first_token_s": median(starts) if starts else None,
        "rounds": [vars(entry) for entry in rounds],
    }


def _recipe(config: EngineConfig, num_threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return how to repeat the run; of files the names only, since it is published."""
    workload = {name: getattr(args, name) for name in _WORKLOAD}
    recipe = make_recipe(config, num_threads=num_threads, isa=str(kernels().isa), workload=workload)
    command = [re.sub(r"/?[^=,]*/(?=[^/])", "", part) for part in recipe["command"]]
    return {**recipe, "model": Path(args.model).name, "command": command, "commit": _commit()}


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
