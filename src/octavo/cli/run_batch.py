"""`octavo run-batch`: answer a file of requests in OpenAI's batch format, and go on where a killed run stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options
from octavo.cli.model_option import takes_model
from octavo.cli.server_extra import server_extra
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.server.batch import BatchCounts


@click.command("run-batch", cls=EngineCommand)
@click.option(
    "-i",
    "--input-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help='One request a line: {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {…}}.',
)
@click.option(
    "-o",
    "--output-file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="One answer a line, in the order in which they are ready. What it holds already is done.",
)
@takes_model
@click.option(
    "--served-model-name",
    multiple=True,
    help="What the requests call the model; may be repeated.  [default: --model]",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
@engine_flags
def command(
    input_file: Path, output_file: Path, model: str, served_model_name: tuple[str, ...], quiet: bool, **flags: Any
) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Each line asks for a completion, a chat, a response or an embedding. May be killed at any moment: the same command
    goes on where it stopped, and the output holds each answer once. A line that cannot be served gets an answer with
    an error, and the exit status is 0 all the same.
    """
    with server_extra("octavo run-batch"):
        from octavo.server.batch import run_batch
    from octavo.config import EngineConfig
    from octavo.frontend.start import start_engine

    config = EngineConfig(model, **{"use_tqdm_on_load": not quiet, **given_engine_options(flags)})
    counts = run_batch(
        lambda: start_engine(config),
        input_file,
        output_file,
        model_names=served_model_name or (model,),
        seed=config.seed,
        shows_progress=not quiet and sys.stderr.isatty(),
    )
    if not quiet:
        click.echo(_summary(counts), err=True)


def _summary(counts: BatchCounts) -> str:
    """One line: what the output holds of the batch, and how many of its lines this run found there."""
    text = f"{counted(counts.num_lines, 'line')}: {counts.num_answered:,} answered, {counts.num_errors:,} with an error"
    return f"{text} (done before: {counted(counts.num_done_before, 'line')})" if counts.num_done_before else text
