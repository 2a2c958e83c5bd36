"""`octavo explain`: a generation told step by step, as text, as JSON or as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options
from octavo.cli.model_option import takes_model
from octavo.cli.option_types import WholeNumbers
from octavo.cli.prompt_input import PromptForm, prompt_flags, read_prompts
from octavo.cli.sampling_flags import COMMAND_MAX_TOKENS, sampling_flags, sampling_params
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.sampling_params import SamplingParams


@click.command("explain", cls=EngineCommand, short_help="Generate, and tell it step by step.")
@takes_model
@prompt_flags
@click.option(
    "--prompt-token-ids",
    "token_ids",
    type=WholeNumbers(),
    multiple=True,
    help="A prompt as ids with commas between, as in 504,3575,282.",
)
@sampling_flags(max_tokens=COMMAND_MAX_TOKENS["explain"], without=("logprobs",))
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document instead of text.")
@click.option("--plot", metavar="FILE", help="Draw the steps too, as .svg, .png or .pdf.")
@engine_flags
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    prompts: Sequence[str],
    prompt_file: IO[str] | None,
    token_ids: Sequence[tuple[int, ...]],
    as_json: bool,
    plot: str | None,
    **flags: Any,
) -> None:
    """Generate, and tell it step by step: what is fed, what comes out, what the KV cache holds.

    All of it is recorded from the running engine. With several prompts: who is in each step, and which blocks are
    shared. Prompts and sampling are those of octavo generate.
    """
    form = PromptForm.of(flags)
    ids: list[Any] = [{"prompt_token_ids": list(prompt)} for prompt in token_ids]
    texts = [] if ids and not prompts and prompt_file is None else read_prompts(prompts, prompt_file)
    from octavo.config import EngineConfig
    from octavo.explain.views import check_plot_path
    from octavo.explain.walkthrough import walk_through
    from octavo.explain.walkthrough_text import walkthrough_lines

    if plot is not None:
        check_plot_path(plot)

    def requests(llm: LLM) -> tuple[list[Any], SamplingParams]:
        params = sampling_params(llm, flags, max_tokens=COMMAND_MAX_TOKENS["explain"])
        return [*(form.rendered(llm, text) for text in texts), *ids], params

    story = walk_through(EngineConfig(model, **given_engine_options(flags)), requests)
    if as_json:
        click.echo(json.dumps(story.to_json()))
    else:
        for line in walkthrough_lines(story):
            click.echo(click.style(line.text, bold=True) if line.is_heading else line.text)
    if plot is not None:
        from octavo.explain.walkthrough_plot import plot_walkthrough

        plot_walkthrough(story, plot)
        click.echo(f"{plot}: {counted(len({row.step for row in story.steps}), 'step')}", err=True)
    ctx.exit(0 if all(check.holds for check in story.checks) else 1)
