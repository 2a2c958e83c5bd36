"""`octavo serve`: OpenAI's API over one model, with vLLM's flags."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import click

from octavo import envs
from octavo.cli.config_file import config_option
from octavo.cli.engine_flags import EngineCommand, engine_flags, flags_of, given_engine_options, given_options
from octavo.cli.foreign_flags import note_server_flags, server_foreign_flags
from octavo.cli.model_option import takes_model
from octavo.cli.server_extra import server_extra
from octavo.server.address import check_address
from octavo.server.chosen_files import check_files
from octavo.server.options import ServerOptions
from octavo.server.protocol.limits import RequestLimits

logger = logging.getLogger("octavo.server")

_DEFAULT_TARGET_ITL_MS = 200.0
"""A reader sees text flow; without it one long prompt makes all streams stutter."""


@click.command("serve", cls=EngineCommand)
@takes_model
@config_option
@flags_of(ServerOptions)
@flags_of(RequestLimits, without={"allow_request_chat_template"})
@engine_flags
@server_foreign_flags
@click.pass_context
def command(ctx: click.Context, /, model: str, **flags: Any) -> None:
    """Serve a model over OpenAI's and Anthropic's HTTP APIs.

    MODEL is a GGUF file, a directory, a hub id or a built-in name.
    """
    with server_extra("octavo serve"):
        from octavo.server.lifecycle import run_server
        from octavo.server.logs import configure_logs
    options = _server_options(given_options(ServerOptions, flags))
    check_address(options)
    check_files(options)
    configure_logs(options)
    limits = RequestLimits(
        **given_options(RequestLimits, flags), allow_request_chat_template=options.trust_request_chat_template
    )
    note_server_flags(flags)
    engine_options = {"target_itl_ms": _DEFAULT_TARGET_ITL_MS, **given_engine_options(flags)}
    from octavo.config import EngineConfig
    from octavo.frontend.start import start_engine

    logger.info("loading %s", model)
    engine = start_engine(EngineConfig(model, **engine_options))
    ctx.exit(run_server(engine, options, limits, model))


def _server_options(given: dict[str, Any]) -> ServerOptions:
    options = ServerOptions(**given)
    key = envs.api_key()
    return options if options.api_key or key is None else replace(options, api_key=(key,))
