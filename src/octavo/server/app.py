"""Builds the server's ASGI application around an engine: routes, and the layers that every request passes.

From the outside in: `RequestLog`, metrics, `LimitHeaders`, CORS, `RequireKey`, the routes. Errors become OpenAI's JSON.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from octavo.errors import ConfigError, OctavoError
from octavo.server.auth import RequireKey
from octavo.server.http import json_response
from octavo.server.metrics import HttpMetricsMiddleware, ServerMetrics
from octavo.server.protocol.calls import ProtocolContext
from octavo.server.protocol.errors import ApiError, api_error
from octavo.server.request_log import LimitHeaders, RequestLog
from octavo.server.routes_generate import add_generation_routes
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
        engine.tokenizer.chat_templates["default"] = _read_template(options.chat_template)
    context = ProtocolContext(
        model_names=names,
        default_sampling_params=engine.default_sampling_params,
        limits=limits,
        texts=engine.tokenizer,
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
    for add_routes in (add_generation_routes, add_text_routes, add_status_routes):
        add_routes(routes, state)
    for kind in (ApiError, OctavoError):
        routes.add_exception_handler(kind, _answer_error)
    routes.add_exception_handler(Exception, _answer_error)  # raised again behind it: `RequestLog` logs it
    routes.add_exception_handler(HTTPException, _answer_http_error)
    app: ASGIApp = routes
    if options.api_key:
        app = RequireKey(app, options.api_key)
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
    del request
    answer = api_error(error)
    return json_response(answer.body(), answer.status, {"retry-after": "1"} if answer.status == 503 else None)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """An unknown path, or a method that it does not have."""
    del request
    assert isinstance(error, HTTPException), "registered for these"
    return json_response(ApiError(error.status_code, error.detail).body(), error.status_code, error.headers)


def _make_renderer(options: ServerOptions) -> TemplateRenderer:
    return TemplateRenderer(seconds=options.chat_template_timeout, max_chars=options.chat_template_max_chars)


def _read_template(given: str) -> str:
    """Return the template in a file; or what was given, where that is one."""
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template is neither a template nor a file that can be read: {error}.") from error
