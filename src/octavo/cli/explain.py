"""`octavo explain`: a generation told step by step, as text, as JSON or as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options
from octavo.cli.model_option import takes_model
from octavo.cli.option_types import WholeNumbers


@click.command("explain", cls=EngineCommand, short_help="Generate, and tell it step by step.")
@takes_model
@click.option("-p", "--prompt", "prompts", multiple=True, help="A prompt; several are served together.")
@click.option(
    "--prompt-token-ids",
    "token_ids",
    type=WholeNumbers(),
    multiple=True,
    help="A prompt as ids with commas between, as in 504,3575,282.",
)
@click.option("--max-tokens", type=int, default=8, show_default=True, help="Tokens to generate for each prompt.")
@click.option("--n", type=int, default=1, show_default=True, help="Answers to each prompt.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the end-of-text token.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document instead of text.")
@click.option("--plot", metavar="FILE", help="Draw the steps too, as .svg, .png or .pdf.")
@engine_flags
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    prompts: Sequence[str],
    token_ids: Sequence[tuple[int, ...]],
    as_json: bool,
    plot: str | None,
    **flags: Any,
) -> None:
    """Generate, and tell it step by step: what is fed, what comes out, what the KV cache holds.

    All of it is recorded from the running engine. With several prompts: who is in each step, and which blocks are
    shared.
    """
    given: list[Any] = [*prompts, *({"prompt_token_ids": list(ids)} for ids in token_ids)]
    if not given:
        raise click.UsageError("give at least one --prompt or --prompt-token-ids")
    from octavo.config import EngineConfig
    from octavo.explain.views import check_plot_path
    from octavo.explain.walkthrough import walk_through
    from octavo.explain.walkthrough_text import walkthrough_lines
    from octavo.sampling_params import SamplingParams

    if plot is not None:
        check_plot_path(plot)
    params = SamplingParams(
        n=flags["n"],
        temperature=flags["temperature"],
        max_tokens=flags["max_tokens"],
        ignore_eos=flags["ignore_eos"],
        seed=flags["seed"],
    )
    story = walk_through(EngineConfig.from_options(model, **given_engine_options(flags)), given, params)
    if as_json:
        click.echo(json.dumps(story.to_json()))
    else:
        for line in walkthrough_lines(story):
            click.echo(click.style(line.text, bold=True) if line.is_heading else line.text)
    if plot is not None:
        from octavo.explain.walkthrough_plot import plot_walkthrough

        plot_walkthrough(story, plot)
    ctx.exit(0 if all(check.holds for check in story.checks) else 1)
