"""`octavo pull`: fetch a model, so that the next start finds it."""

from __future__ import annotations

import click

from octavo.cli.model_option import takes_model


@click.command("pull")
@takes_model
@click.option("--revision", help="Branch, tag or commit of a hub id.")
@click.option("--download-dir", help="Directory for downloaded models.")
def command(model: str, revision: str | None, download_dir: str | None) -> None:
    """Fetch a model and print where it is.

    MODEL is a built-in name such as smollm2-135m, or a hub id (org/name or org/name:file.gguf).
    """
    from octavo.weights.hub import resolve_model_files

    files = resolve_model_files(model, revision, download_dir)
    click.echo(str(files.path))
