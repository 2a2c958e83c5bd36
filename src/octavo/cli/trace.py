"""`octavo trace`: run some requests and write what the engine did as a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options
from octavo.cli.model_option import takes_model
from octavo.errors import ConfigError
from octavo.wording import counted

_OF_RANDOM_PROMPTS = ("num_prompts", "input_len", "output_len", "length_sigma")


@click.command("trace", cls=EngineCommand, short_help="Record what the engine does, for ui.perfetto.dev.")
@takes_model
@click.option("-o", "--output", required=True, metavar="FILE", help="The trace, as JSON.")
@click.option("-p", "--prompt", "prompts", multiple=True, help="A prompt; several are served together.")
@click.option("--max-tokens", type=int, default=32, show_default=True, help="Tokens to generate for each -p.")
@click.option("--num-prompts", type=int, default=16, show_default=True, help="Random prompts, where none is given.")
@click.option("--input-len", type=int, default=64, show_default=True, help="Tokens of each of them.")
@click.option("--output-len", type=int, default=32, show_default=True, help="Tokens to generate for each of them.")
@click.option(
    "--length-sigma", type=float, default=0.5, show_default=True, help="Their lengths are log-normal with this sigma."
)
@engine_flags
@click.pass_context
def command(ctx: click.Context, /, model: str, output: str, prompts: Sequence[str], **flags: Any) -> None:
    """Record what the engine does, step by step, and write it for https://ui.perfetto.dev or chrome://tracing.

    Steps with their phases, a row for each seat with the chunks of its requests, every block as it changes hands, and
    what was deferred, preempted or evicted. The trace stays on this machine until you open it somewhere.
    """
    _check_flags(ctx, has_prompts=bool(prompts))
    from octavo.bench.workload import Workload
    from octavo.config import EngineConfig
    from octavo.explain.recording import record_prompts, record_workload, recording_cost
    from octavo.observe.trace import chrome_trace

    if Path(output).is_dir():
        raise ConfigError(f"--output {output!r} is a directory: name a file in it.")
    if not Path(output).resolve().parent.is_dir():
        raise ConfigError(f"There is no directory for {output!r}.")
    config = EngineConfig(model, **(given_engine_options(flags) | {"record_events": True}))
    if prompts:
        recorded = record_prompts(config, prompts, flags["max_tokens"])
    else:
        workload = Workload(**{name: flags[name] for name in _OF_RANDOM_PROMPTS}, seed=config.seed)
        prompts_made = counted(flags["num_prompts"], "random prompt")
        click.echo(f"Note: no -p was given, and stdin is not read: {prompts_made}.", err=True)
        recorded = record_workload(config, workload)
    Path(output).write_text(json.dumps(chrome_trace(recorded)), encoding="utf-8")
    click.echo(f"{output}: {recording_cost(recorded).summary()}")


def _check_flags(ctx: click.Context, *, has_prompts: bool) -> None:
    """Raise a usage error for a flag that would be without effect."""
    for name in _OF_RANDOM_PROMPTS if has_prompts else ("max_tokens",):
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            instead = "random prompts, and there are none beside -p" if has_prompts else "-p; without, set --output-len"
            raise click.UsageError(f"{flag} is for {instead}")
