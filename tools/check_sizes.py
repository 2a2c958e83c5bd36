"""Fail when a file, function or class outgrows its budget.   usage: python tools/check_sizes.py

Small pieces keep the engine readable; a limit that only prose states is broken by its author.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_FILE, PYTHON_FUNCTION, PYTHON_CLASS = 500, 80, 350
CPP_FILE, CPP_FUNCTION = 500, 150
CORE_TOTAL = 2500

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
    """Yield (item, lines, limit) for a C++ file and its functions (a body starts and ends at column 0)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    name = str(path.relative_to(ROOT))
    yield name, len(lines), CPP_FILE
    start = None
    for number, line in enumerate(lines, 1):
        if start is None and re.match(r"^[A-Za-z].*\)[^;]*\{$", line) and not line.startswith("namespace"):
            start = number
        elif start is not None and line.startswith("}"):
            yield f"{name}:{start}", number - start + 1, CPP_FUNCTION
            start = None


def main() -> int:
    """Print what is over budget; return 1 if anything is."""
    sizes = [s for p in sorted((ROOT / "src").rglob("*.py")) for s in python_sizes(p)]
    sizes += [s for p in sorted((ROOT / "tests").rglob("*.py")) for s in python_sizes(p)]
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
