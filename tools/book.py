"""What the book in docs/book shows: commands with what they print, run now, or recorded where it takes measuring.

Generated parts of the chapters (`make docs`) call `shown` and `shown_python`, whose outputs are the same on every
machine, so CI checks that they are current; and `recorded`, whose times are those of the machine that is named below.

usage: python tools/book.py [NAME ...]    # record anew, all or some; on an idle machine, with octavo[views] installed
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import sys
import time
from pathlib import Path

from click.testing import CliRunner

from octavo.cli.main import main as octavo
from octavo.frontend.machine import processor_name
from octavo.native import default_num_threads, kernels

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs" / "book"
MODEL = "-m smollm2-135m"
RECORDED = {
    "kv-cache": "octavo lab kv-cache",
    "roofline": f"octavo roofline {MODEL} --batch-sizes 1,8,64",
    "batching": "octavo lab batching",
    "chunked-prefill": "octavo lab chunked-prefill",
    "memory": "octavo lab memory",
    "prefix": "octavo lab prefix",
    "block-size": "octavo lab block-size",
}
"""Measured: each with its figure, where it draws one."""
DRAWN = {
    "steps": f'octavo explain {MODEL} -p "The capital of France is" --max-tokens 6 --temperature 0',
}
"""Drawn only: their text is shown as it is now."""
ROUNDS = 2
WIDTH = 110


def shown(command: str, *, first: str | None = None, last: str | None = None) -> str:
    """Return a command and what it prints now: all, or from the line that begins with `first` to before `last`."""
    return _block(f"$ {_folded(command)}\n{_cut(_run(command), first, last)}")


def shown_python(code: str) -> str:
    """Return a program and what it prints now."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/book", "exec"), {})
    return f"```python\n{code.strip()}\n```\n\n{_block(printed.getvalue())}"


def recorded(name: str, *, first: str | None = None, last: str | None = None) -> str:
    """Return a command and what it printed when it was recorded, and where that was."""
    output, _, place = (BOOK / "recorded" / f"{name}.txt").read_text(encoding="utf-8").rpartition("\n\n")
    block = _block(f"$ {_folded(RECORDED[name])}\n{_cut(output, first, last)}")
    return f"{block}\n\n*{place.strip()}*"


def listing(folder: str, *names: str) -> str:
    """Return a table of files of the source and the first lines of their docstrings: all of a folder, or some."""
    table = ["| file | its job |", "| --- | --- |"]
    source = ROOT / "src" / "octavo" / folder
    for path in [source / f"{name}.py" for name in names] or sorted(source.glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if docstring:
            job = " ".join(docstring.partition("\n\n")[0].split()).replace("|", "\\|")
            table.append(f"| [`{path.name}`](../../{path.relative_to(ROOT).as_posix()}) | {job} |")
    return "\n".join(table)


def main() -> int:
    """Record."""
    chosen = sys.argv[1:] or [*RECORDED, *DRAWN]
    place = f"Recorded {time.strftime('%Y-%m-%d', time.gmtime())} on {processor_name()}, "
    place += f"{default_num_threads()} threads, {kernels().isa}."
    for name in chosen:
        figure = f"--plot {BOOK.relative_to(ROOT)}/figures/{name}.svg"
        if name in DRAWN:
            _run(f"{DRAWN[name]} {figure}")
            continue
        more = f" --rounds {ROUNDS} {figure}" if " lab " in RECORDED[name] else ""
        output = _run(RECORDED[name] + more)
        (BOOK / "recorded" / f"{name}.txt").write_text(f"{output}\n\n{place}\n", encoding="utf-8")
        print(f"{name}: recorded")
    return 0


def _run(command: str) -> str:
    """Run an `octavo` command in this process; return what it prints.

    Raises: RuntimeError if it fails.
    """
    program, *arguments = shlex.split(command)
    assert program == "octavo", "the book shows commands of octavo"
    os.chdir(ROOT)
    result = CliRunner().invoke(octavo, arguments)
    if result.exit_code:
        raise RuntimeError(f"{command}: exit status {result.exit_code}\n{result.output}")
    return result.stdout.rstrip()


def _folded(command: str) -> str:
    """Return a command over several lines, each with whole options, if it is too long for one."""
    lines = [""]
    for part in re.split(r" (?=--?\w)", command):
        if len(lines[-1]) + len(part) > WIDTH:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n".join(lines)


def _cut(text: str, first: str | None, last: str | None) -> str:
    lines = text.splitlines()
    begin = 0 if first is None else next(i for i, line in enumerate(lines) if line.startswith(first))
    end = len(lines) if last is None else next(i for i in range(begin, len(lines)) if lines[i].startswith(last))
    cut = ["…"] * (begin > 0) + lines[begin:end] + ["…"] * (end < len(lines))
    return "\n".join(cut).rstrip()


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.rstrip().splitlines())
    return f"```text\n{lines}\n```"


if __name__ == "__main__":
    sys.exit(main())
