"""Routes that tell: health, version, load, models, metrics, the description of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI, Response

from octavo.server.http import json_response
from octavo.server.metrics import CONTENT_TYPE
from octavo.server.protocol.errors import model_not_found
from octavo.server.protocol.openapi import openapi_document
from octavo.server.protocol.responses import LoadResponse, ModelCard, ModelList, VersionResponse
from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.server.state import ServerState

_encode = msgspec.json.encode


def add_status_routes(app: FastAPI, state: ServerState) -> None:
    """Add the routes."""
    cards = {name: _card(name, state) for name in state.context.model_names}
    description = _encode(openapi_document(__version__, needs_key=bool(state.options.api_key)))

    @app.get("/health")
    @app.get("/ping")
    @app.post("/ping")
    async def health() -> Response:
        await state.llm.check_health()
        return Response()

    @app.get("/version")
    async def version() -> Response:
        return json_response(_encode(VersionResponse(__version__)))

    @app.get("/load")
    async def load() -> Response:
        return json_response(_encode(LoadResponse(state.llm.num_unfinished)))

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(_encode(ModelList(data=list(cards.values()))))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name not in cards:
            raise model_not_found(name, state.context.model_names[0])
        return json_response(_encode(cards[name]))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await state.metrics.render(state.llm), media_type=CONTENT_TYPE)

    @app.get("/octavo/snapshot")
    async def snapshot() -> Response:
        return json_response(_encode((await state.llm.snapshot()).to_json()))

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return json_response(description)


def _card(name: str, state: ServerState) -> ModelCard:
    root = state.context.model_names[0]
    return ModelCard(id=name, created=state.created, root=root, max_model_len=state.llm.engine.max_model_len)
