"""`octavo inspect`: what a model is made of and what it takes, as tables or as JSON. No weights are loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options
from octavo.cli.model_option import takes_model
from octavo.cli.sampling_flags import COMMAND_MAX_TOKENS
from octavo.sampling_params import SamplingParams
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.explain.model_report import LoadReport, ModelReport

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_KINDS = {"full": "attention", "sliding": "attention", "state": "Gated DeltaNet"}


@click.command("inspect", cls=EngineCommand, short_help="Show what MODEL is made of and the memory it takes.")
@takes_model
@click.option("--program", "show_program", is_flag=True, help="List the ops of the model's program.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
@engine_flags
def command(model: str, show_program: bool, as_json: bool, **flags: Any) -> None:
    """Show what MODEL is made of, what it takes in memory, and how many requests fit on this machine.

    A config.json is enough: no weights are loaded, and none are downloaded.
    """
    from octavo.config import EngineConfig
    from octavo.explain.model_report import inspect_model

    report = inspect_model(EngineConfig(model, **given_engine_options(flags)))
    if as_json:
        click.echo(json.dumps({**asdict(report), "command_max_tokens": COMMAND_MAX_TOKENS}))
        return
    for line in _lines(report):
        click.echo(line)
    if show_program:
        click.echo(f"\nProgram, {counted(len(report.ops), 'op')}")
        for index, op in enumerate(report.ops):
            click.echo(f"{index:>5}  {op}")


def _lines(report: ModelReport) -> Iterator[str]:
    weights = "" if report.has_weights else " (config alone, no weights here)"
    yield f"{report.model}: {report.architecture}{weights}"
    yield from _facts(
        [
            ("parameters", f"{report.parameters:,}, of which {report.embedding_parameters:,} in the embedding"),
            ("layers", f"{report.num_layers} of width {report.hidden_size:,}"),
            ("vocabulary", f"{report.vocab_size:,}"),
            ("context", counted(report.max_model_len, "token")),
            ("sampling", _sampling(report.default_sampling_params)),
            ("answer length", _answer_length(report.default_sampling_params)),
            ("largest step", f"{_size(report.activation_bytes)} for {counted(report.max_num_batched_tokens, 'token')}"),
            ("rotation tables", _size(report.rope_table_bytes)),
        ]
    )
    yield "\nCache of a request"
    for group in report.cache_groups:
        kind = f"{counted(group.num_layers, 'layer')} of {_KINDS[group.kind]}"
        if group.window is not None:
            kind += f", window {group.window:,}"
        if group.bytes_per_token:
            yield f"  {kind}: {group.bytes_per_token:,} bytes a token ({report.kv_cache_dtype})"
            continue
        yield f"  {kind}: {_size(report.state_bytes_per_request)} whatever its length"
        for part, size in group.bytes_per_request.items():
            yield f"    {_size(size):>10}  {part}"
    for name, load in report.loads.items():
        yield from _load_lines(name, load, report.available_bytes)


def _load_lines(name: str, load: LoadReport, available: int) -> Iterator[str]:
    title = name if name == "as stored" else f"quantization={name}"
    yield f"\n{title}: {_size(load.weight_bytes)} of weights"
    for share in load.formats:
        tensors = counted(share.num_tensors, "tensor")
        yield f"    {share.format:<6} {_size(share.bytes):>10}  {share.parameters:,} in {tensors}"
    parts = "rotation tables, the head's estimates" if load.screen_bytes else "rotation tables"
    yield f"  {_size(load.loaded_bytes)} when loaded, with {parts} and the largest step"
    yield f"  {_size(available)} available here, so the cache may grow to {_size(load.cache_bytes)}:"
    for fit in load.requests:
        requests = f"{counted(fit.num_requests, 'request'):>15} of {counted(fit.num_tokens, 'token')}"
        yield f"    {requests}, {_size(fit.bytes_per_request)} each"


def _sampling(defaults: Mapping[str, float | None]) -> str:
    """Return how the tokens of a plain request are chosen."""
    plain = SamplingParams()
    values = ", ".join(f"{name} {defaults[name]:g}" for name in _SAMPLING)
    own = ", ".join(name for name in _SAMPLING if defaults[name] != getattr(plain, name))
    return f"{values} ({own or 'none'} from a generation config)"


def _answer_length(defaults: Mapping[str, float | None]) -> str:
    """Return how many tokens a plain request gets, and where: commands do not take the model's or the API's number."""
    by_command = ", ".join(
        f"{'what the context leaves' if length is None else length} in octavo {name}"
        for name, length in COMMAND_MAX_TOKENS.items()
    )
    return f"at most {defaults['max_tokens']} in the API, {by_command}"


def _facts(facts: list[tuple[str, str]]) -> Iterator[str]:
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        yield f"  {name:<{width}}  {value}"


def _size(num_bytes: int) -> str:
    """Return bytes with three digits, in the unit that leaves at least one before the point."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            decimals = 2 if num_bytes < 10 * size else 1 if num_bytes < 100 * size else 0
            return f"{num_bytes / size:.{decimals}f} {unit}"
    return f"{num_bytes} bytes"
