"""`octavo collect-env`: what a report of a fault should say about the machine and the installation."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

import click

from octavo.errors import NativeError
from octavo.version import __version__
from octavo.wording import counted

_PACKAGES = ("numpy", "tokenizers", "jinja2", "huggingface-hub", "click", "tqdm")


@click.command("collect-env")
def command() -> None:
    """Show versions, kernels, threads and memory."""
    facts = [*_software(), *_kernels(), *_machine()]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{name:<{width}}  {value}")


def _software() -> Iterator[tuple[str, str]]:
    yield "octavo", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "missing"
    variables = sorted(name for name in os.environ if name.startswith("OCTAVO_"))
    yield "environment", ", ".join(f"{name}={os.environ[name]}" for name in variables) or "nothing set"


def _kernels() -> Iterator[tuple[str, str]]:
    from octavo.frontend.fingerprint import numeric_fingerprint
    from octavo.native import default_num_threads, kernels

    try:
        isa = str(kernels().isa)
    except NativeError as error:
        yield "kernels", f"cannot be loaded: {error}"
        return
    yield "kernels", isa
    yield "numeric fingerprint", f"{numeric_fingerprint(isa=isa)} (of this build; a model's outputs have their own)"
    yield "threads", str(default_num_threads())


def _machine() -> Iterator[tuple[str, str]]:
    from octavo.frontend.machine import available_memory_bytes, processor_name, total_memory_bytes

    yield "processor", processor_name()
    yield "quantized weights kept", _kept_weights()
    yield "logical CPUs", str(os.cpu_count())
    yield "memory", f"{total_memory_bytes() / 2**30:.1f} GiB, {available_memory_bytes() / 2**30:.1f} GiB available"


def _kept_weights() -> str:
    from octavo.weights.quantized_cache import cache_directory

    sizes = [file.stat().st_size for file in cache_directory().glob("*.safetensors")]
    return f"{counted(len(sizes), 'model')}, {sum(sizes) / 1e9:.1f} GB in {cache_directory()}" if sizes else "none"
