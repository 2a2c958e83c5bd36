"""`octavo lab`: one workload on the real engine, with one policy switched: as a table, a plot, or JSON."""

from __future__ import annotations

from typing import Any

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options
from octavo.cli.model_option import takes_model

_EXPERIMENTS = {
    "batching": "Static against continuous batching.",
    "memory": "Memory reserved for the longest answer, or paged.",
    "kv-cache": "No KV cache against one. --num-requests: tokens of the answer.",
    "prefix": "Prompts that begin alike, with a prefix cache and without.",
    "block-size": "Blocks of 16 to 128 tokens.",
    "chunked-prefill": "Long prompts beside readers, whole or in chunks. --num-requests: the readers.",
}
_WIDTH = 110
"""Columns of a paragraph."""


@click.group("lab", short_help="Run the same requests with and without an idea of the engine.")
def command() -> None:
    """Show what each idea of the engine is worth: run the same requests with it and without.

    Nothing is simulated: the old ways are policies of the real engine. Each experiment prints a table and a sentence.
    """


def _experiment(name: str, text: str) -> click.Command:
    @click.command(name, cls=EngineCommand, help=text)
    @takes_model(default="smollm2-135m")
    @click.option("--num-requests", type=int, help="Of the workload.  [default: what shows the effect]")
    @click.option("--rounds", type=int, default=1, show_default=True, help="Runs of each policy; the fastest counts.")
    @click.option("--plot", type=click.Path(dir_okay=False), help="Draw it: a .png or .svg file.")
    @click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead, keyed by policy.")
    @engine_flags
    def run(model: str, num_requests: int | None, rounds: int, plot: str | None, as_json: bool, **flags: Any) -> None:
        from octavo.explain.lab.compare import LabSettings
        from octavo.explain.lab.experiments import EXPERIMENTS
        from octavo.explain.views import check_plot_path, new_figure, save_figure

        if plot is not None:
            check_plot_path(plot)  # before the work, not after it
        settings = LabSettings(model, given_engine_options(flags), num_requests, rounds, flags["seed"] or 0)
        report = EXPERIMENTS[name](settings)
        if as_json:
            click.echo(report.to_json())
        else:
            heading, words = (click.wrap_text(text, _WIDTH) for text in (report.workload, report.summary))
            click.echo(f"{report.title}: {model}\n{heading}\n\n{report.table}\n\n{words}")
        if plot is not None:
            figure = new_figure(9.0, 5.0)
            report.draw(figure)
            save_figure(figure, plot)

    return run


for _name, _text in _EXPERIMENTS.items():
    command.add_command(_experiment(_name, _text))
