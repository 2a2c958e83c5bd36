"""Fail when a file, function or class outgrows its budget.   usage: python tools/check_sizes.py

Small pieces keep the engine readable; a limit that only prose states is broken by its author.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_FILE, PYTHON_FUNCTION, PYTHON_CLASS = 500, 80, 350
CPP_FILE, CPP_FUNCTION = 500, 150
CORE_TOTAL = 2500

CPP_SIGNATURE = re.compile(
    r" *(?!namespace|class|struct|enum|union|else)(?:[A-Za-z][^(;={}]*?[\s*&>])?([\w:~]+)\([^;]*\{ $"
)
"""The lines of a function up to its body, joined; with its name."""
CPP_NO_SIGNATURE = re.compile(r"__attribute__\(\(\w+\)\) |^[A-Z_]+\(\w+\) $")
"""Before a name, or a macro alone."""

EXCEPTIONS: dict[str, str] = {}
"""Item as printed by this tool (without the numbers) -> reason and date."""


def python_sizes(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield (item, lines, limit) for a Python file, its functions and its classes."""
    source = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT))
    yield name, source.count("\n"), PYTHON_FILE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            limit = PYTHON_CLASS if isinstance(node, ast.ClassDef) else PYTHON_FUNCTION
            yield f"{name}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1, limit


def cpp_sizes(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield (item, lines, limit) for a C++ file and its functions."""
    lines = path.read_text(encoding="utf-8").splitlines()
    name = str(path.relative_to(ROOT))
    yield name, len(lines), CPP_FILE
    for function, num_lines in cpp_functions(lines):
        yield f"{name}:{function}", num_lines, CPP_FUNCTION


def cpp_functions(lines: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield (name, lines) of each function: from its signature, however long, to the brace below its start.

    A signature starts with a word, at the margin or indented in a class, has a parenthesis, and ends in a brace.
    """
    begin, function, signature = 0, "", ""
    for number, line in enumerate(lines):
        if function:
            if line.startswith(lines[begin][: -len(lines[begin].lstrip())] + "}"):
                yield function, number - begin + 1
                function = ""
            continue
        if not signature:
            begin = number
        signature = CPP_NO_SIGNATURE.sub("", signature + line.partition("//")[0].rstrip() + " ")
        found = CPP_SIGNATURE.match(signature)
        if found:
            function = found[1]
        if found or not signature.strip() or signature.lstrip().startswith("#") or signature[-2] in "{};:":
            signature = ""


def main() -> int:
    """Print what is over budget; return 1 if anything is."""
    folders = ("src", "tests", "benchmarks", "tools", "examples")
    sizes = [s for folder in folders for p in sorted((ROOT / folder).rglob("*.py")) for s in python_sizes(p)]
    sizes += [s for p in sorted((ROOT / "csrc").rglob("*.[hc]*")) for s in cpp_sizes(p)]
    core = sum(p.read_text(encoding="utf-8").count("\n") for p in (ROOT / "src/octavo/core").rglob("*.py"))
    sizes.append(("src/octavo/core", core, CORE_TOTAL))
    over = [(item, lines, limit) for item, lines, limit in sizes if lines > limit and item not in EXCEPTIONS]
    for item, lines, limit in over:
        print(f"{item}: {lines} lines > {limit}")
    print(f"{len(sizes)} items, {len(over)} over budget")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
