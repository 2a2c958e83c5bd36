"""Builds the server's ASGI application around an engine: routes, and the layers that every request passes.

From the outside in: `RequestLog`, metrics, `LimitHeaders`, CORS, `RequireKey`, the routes. Errors become JSON, OpenAI's
or Anthropic's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from octavo.errors import OctavoError
from octavo.server.auth import OPEN_PATHS, RequireKey
from octavo.server.chosen_files import read_template
from octavo.server.error_bodies import error_body
from octavo.server.http import json_response
from octavo.server.metrics import HttpMetricsMiddleware, ServerMetrics
from octavo.server.parsers.formats import model_format
from octavo.server.protocol.calls import ProtocolContext
from octavo.server.protocol.errors import ApiError, api_error
from octavo.server.request_log import LimitHeaders, RequestLog
from octavo.server.routes_dashboard import add_dashboard
from octavo.server.routes_embed import add_embedding_routes
from octavo.server.routes_generate import add_generation_routes
from octavo.server.routes_messages import add_messages_routes
from octavo.server.routes_status import add_status_routes
from octavo.server.routes_text import add_text_routes
from octavo.server.state import ServerState
from octavo.server.templates import TemplateRenderer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from octavo.frontend.async_engine import AsyncLLM
    from octavo.server.options import ServerOptions
    from octavo.server.protocol.limits import RequestLimits


def make_state(llm: AsyncLLM, options: ServerOptions, limits: RequestLimits, model: str) -> ServerState:
    """Return what the routes share.

    Args:
        model: its name, where the options give no other.

    Raises: `ConfigError`.
    """
    engine = llm.engine
    names = options.served_model_name or (model,)
    if options.chat_template is not None:
        engine.tokenizer.chat_templates = {"default": read_template(options.chat_template)}
    context = ProtocolContext(
        model_names=names,
        default_sampling_params=engine.default_sampling_params,
        limits=limits,
        texts=engine.tokenizer,
        output_format=model_format(
            engine.tokenizer, tool_parser=options.tool_call_parser, reasoning_parser=options.reasoning_parser
        ),
        allows_auto_calls=options.enable_auto_tool_choice,
        fingerprint=engine.numeric_fingerprint,
        forces_usage=options.enable_force_include_usage,
    )
    return ServerState(
        llm=llm,
        options=options,
        context=context,
        model_templates=_make_renderer(options),
        foreign_templates=_make_renderer(options),
        metrics=ServerMetrics(names[0]),
        created=int(time.time()),
    )


def make_app(state: ServerState) -> ASGIApp:
    """Return the application."""
    options = state.options
    routes = FastAPI(openapi_url=None, redirect_slashes=False)
    for add_routes in (
        add_generation_routes,
        add_messages_routes,
        add_embedding_routes,
        add_text_routes,
        add_status_routes,
    ):
        add_routes(routes, state)
    open_paths = OPEN_PATHS if options.disable_dashboard else OPEN_PATHS | add_dashboard(routes)
    for kind in (ApiError, OctavoError):
        routes.add_exception_handler(kind, _answer_error)
    routes.add_exception_handler(Exception, _answer_error)  # raised again behind it: `RequestLog` logs it
    routes.add_exception_handler(HTTPException, _answer_http_error)
    app: ASGIApp = routes
    if options.api_key:
        app = RequireKey(app, options.api_key, open_paths)
    if options.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.allowed_origins,
            allow_credentials=options.allow_credentials,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    app = HttpMetricsMiddleware(LimitHeaders(app, options.max_headers), state.metrics)
    return RequestLog(app, logs_access=not options.disable_uvicorn_access_log)


async def _answer_error(request: Request, error: Exception) -> Response:
    answer = api_error(error)
    body = error_body(request.scope, answer)
    return json_response(body, answer.status, {"retry-after": "1"} if answer.status == 503 else None)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """An unknown path, or a method that it does not have."""
    assert isinstance(error, HTTPException), "registered for these"
    way_out = ""
    if error.status_code == 404:
        way_out = ": see /openapi.json. The base URL of OpenAI's clients ends in /v1, that of Anthropic's does not."
    elif error.headers and "Allow" in error.headers:
        way_out = f": use {error.headers['Allow']}."
    body = error_body(request.scope, ApiError(error.status_code, error.detail + way_out))
    return json_response(body, error.status_code, error.headers)


def _make_renderer(options: ServerOptions) -> TemplateRenderer:
    return TemplateRenderer(seconds=options.chat_template_timeout, max_chars=options.chat_template_max_chars)
